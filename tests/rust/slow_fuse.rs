//! A FUSE file system that shows a folder read-only, and is slow, short or broken on request. It stands in for network
//! storage in tests and benchmarks.
//!
//! ```text
//! slow_fuse SOURCE MOUNT [--delay-ms 0] [--bandwidth-bytes N] [--request-bytes N] [--direct-io]
//!           [--keep-cache] [--fail-after N] [--fail-range FROM-TO] [--errno 5] [--short-reads] [--threads 64]
//!           [--background N] [--refuse-direct open|read] [--attributes-hold-ms 1000] [--whole-seconds]
//!           [--open-delay-ms 0] [--gather N]
//! ```
//!
//! * `--delay-ms`: each read request takes this much longer. All threads can wait at the same time.
//! * `--gather`: holds read requests until N of them wait together, and holds no more after that. If the programs that
//!   use the mount fall asleep first, no other request is coming, and the held requests continue. The first 64 KiB of
//!   each file, for example the header of a safetensors file, are exempt.
//! * `--bandwidth-bytes`: all read requests together get at most this many bytes per second. Idle time is lost.
//! * `--request-bytes`: the kernel requests at most this many bytes at a time, in whole pages. The kernel's own limit
//!   is 1 MiB.
//! * `--direct-io`: there is no page cache, and MAP_SHARED fails with ENODEV.
//! * `--keep-cache`: opening a file leaves its pages in the page cache. Without it, the kernel drops them.
//! * `--background`: the kernel makes this many read-ahead requests at a time, by default one per thread. libfuse has
//!   12.
//! * `--fail-after`: read requests after the first N fail with `--errno`.
//! * `--fail-range`: read requests for any of these bytes of a file fail too.
//! * `--refuse-direct`: opening a file with O_DIRECT, or reading from such a descriptor, fails with EINVAL.
//! * `--attributes-hold-ms`: the kernel may cache attributes for this long. The default, a second, is libfuse's.
//! * `--whole-seconds`: the times of files have no fractions.
//! * `--open-delay-ms`: opening a file takes this much longer.
//! * `--short-reads`: each read returns half of the requested bytes. Without `--direct-io`, the kernel takes that for
//!   the end of the file.
//!
//! The program prints "ready" once it is mounted. It then answers each line of its input with a line of output:
//!
//! * `hold reads FROM TO`: later reads that begin within these bytes of a file wait until they are released.
//!   `hold openings`: later openings wait too.
//! * `wait N`: answers once at least N requests wait.
//! * `held`: answers with the waiting reads, as a JSON list of offsets and lengths, in the order of their arrival.
//! * `release N`: releases the N oldest requests. `fail N ERRNO` makes them fail.
//! * `open`: releases all requests and holds no later ones.
//! * `counts`: answers with the counts so far, in the form of the final line.
//!
//! SIGTERM, SIGINT or the end of its input makes the program unmount and end. It then prints one line of JSON: the
//! number of read requests, the size of the largest one, the bytes that it returned, and more.
#![allow(unsafe_code)] // The standard library does not support signals.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::Write;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, Request,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The kernel splits requests into pages, with at most 256 pages at a time (`fs.fuse.max_pages_limit`).
const PAGE_BYTES: u32 = 4096;
const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// `--gather` does not hold reads of a header, because programs make them one after another.
const HEADER_BYTES: u64 = 64 << 10;
/// The programs are asleep if this many looks in a row find no running thread. A single look examines one thread after
/// another, and misses work that moves between them.
const QUIET_LOOKS: u32 = 5;
const LOOK_PERIOD: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Options {
    source: PathBuf,
    mount: PathBuf,
    delay: Duration,
    bandwidth_bytes: Option<NonZeroU64>,
    request_bytes: Option<u32>,
    direct_io: bool,
    keep_cache: bool,
    fail_after: u64,
    fail_range: Range<u64>,
    errno: i32,
    short_reads: bool,
    threads: u16,
    background: Option<u16>,
    refuse_direct: Option<RefusedCall>,
    attributes_hold: Duration,
    /// The resolution of file times, in nanoseconds.
    time_step: i64,
    open_delay: Duration,
    gather: Option<usize>,
}

/// The call that fails for direct I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RefusedCall {
    Open,
    Read,
}

fn options() -> Outcome<Options> {
    let mut places = Vec::new();
    let mut options = Options {
        source: PathBuf::new(),
        mount: PathBuf::new(),
        delay: Duration::ZERO,
        bandwidth_bytes: None,
        request_bytes: None,
        direct_io: false,
        keep_cache: false,
        fail_after: u64::MAX,
        fail_range: 0..0,
        errno: libc::EIO,
        short_reads: false,
        threads: 64,
        background: None,
        refuse_direct: None,
        attributes_hold: Duration::from_secs(1),
        time_step: 1,
        open_delay: Duration::ZERO,
        gather: None,
    };
    let mut words = std::env::args_os().skip(1);
    while let Some(word) = words.next() {
        let name = word.to_str().unwrap_or_default();
        if !name.starts_with("--") {
            places.push(PathBuf::from(word));
            continue;
        }
        let mut value =
            || words.next().and_then(|value| value.into_string().ok()).ok_or("a value is missing");
        match name {
            "--delay-ms" => options.delay = Duration::try_from_secs_f64(value()?.parse::<f64>()? / 1e3)?,
            "--bandwidth-bytes" => options.bandwidth_bytes = Some(value()?.parse()?),
            "--request-bytes" => {
                let bytes = value()?.parse()?;
                if bytes % PAGE_BYTES != 0 || !(PAGE_BYTES..=MAX_REQUEST_BYTES).contains(&bytes) {
                    return Err(format!("a request has pages of {PAGE_BYTES} bytes, 1 to 256 of them").into());
                }
                options.request_bytes = Some(bytes);
            }
            "--attributes-hold-ms" => options.attributes_hold = Duration::from_millis(value()?.parse()?),
            "--whole-seconds" => options.time_step = 1_000_000_000,
            "--open-delay-ms" => options.open_delay = Duration::from_millis(value()?.parse()?),
            "--gather" => options.gather = Some(value()?.parse()?),
            "--direct-io" => options.direct_io = true,
            "--keep-cache" => options.keep_cache = true,
            "--fail-after" => options.fail_after = value()?.parse()?,
            "--fail-range" => {
                let value = value()?;
                let (from, to) = value.split_once('-').ok_or("a range is FROM-TO")?;
                options.fail_range = from.parse()?..to.parse()?;
            }
            "--errno" => options.errno = value()?.parse()?,
            "--short-reads" => options.short_reads = true,
            "--refuse-direct" => {
                options.refuse_direct = Some(match value()?.as_str() {
                    "open" => RefusedCall::Open,
                    "read" => RefusedCall::Read,
                    other => return Err(format!("--refuse-direct open or read, not {other}").into()),
                });
            }
            "--threads" => options.threads = value()?.parse()?,
            "--background" => options.background = Some(value()?.parse()?),
            _ => return Err(format!("{name} is not known").into()),
        }
    }
    let Ok([source, mount]) = <[PathBuf; 2]>::try_from(places) else {
        return Err("slow_fuse SOURCE MOUNT [options]".into());
    };
    (options.source, options.mount) = (fs::canonicalize(source)?, fs::canonicalize(mount)?);
    Ok(options)
}

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    largest_request_bytes: AtomicU64,
    bytes: AtomicU64,
    /// For each n, the bytes of requests of 2^n up to 2^(n+1) bytes.
    bytes_by_size: [AtomicU64; 32],
    attributes: AtomicU64,
    openings: AtomicU64,
    /// Reads that are being answered, and the maximum so far.
    in_flight: AtomicU64,
    most_in_flight: AtomicU64,
}

impl Counts {
    fn json(&self) -> String {
        let listed = [
            ("read_requests", &self.requests),
            ("largest_request_bytes", &self.largest_request_bytes),
            ("read_bytes", &self.bytes),
            ("attribute_requests", &self.attributes),
            ("openings", &self.openings),
            ("most_in_flight", &self.most_in_flight),
        ]
        .map(|(name, count)| format!("\"{name}\": {}", count.load(Ordering::Relaxed)));
        let by_size = self.bytes_by_size.each_ref().map(|count| count.load(Ordering::Relaxed));
        format!("{{{}, \"read_bytes_by_size\": {by_size:?}}}", listed.join(", "))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Opening,
    Read { offset: u64, len: u32 },
}

/// Holds requests until the test releases them.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    /// Reads that begin in this range are held.
    holds_reads: Range<u64>,
    holds_openings: bool,
    /// Waiting requests, in the order of their arrival.
    held: BTreeMap<u64, Asked>,
    /// Requests that were released to fail.
    failing: HashMap<u64, i32>,
    arrived: u64,
    /// Reads held by `gather`.
    gathering: usize,
    /// Enough reads have waited together, so `gather` holds no more.
    has_gathered: bool,
    /// Counts how often held reads continued because the programs were asleep.
    rounds: u64,
}

impl Gate {
    /// Waits until the request is released.
    fn pass(&self, asked: Asked) -> Result<(), Errno> {
        let mut state = locked(&self.state);
        let is_held = match &asked {
            Asked::Opening => state.holds_openings,
            Asked::Read { offset, .. } => state.holds_reads.contains(offset),
        };
        if !is_held {
            return Ok(());
        }
        let ticket = state.arrived;
        state.arrived += 1;
        state.held.insert(ticket, asked);
        self.moved.notify_all();
        while state.held.contains_key(&ticket) {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failing.remove(&ticket).map_or(Ok(()), |errno| Err(Errno::from_i32(errno)))
    }

    /// Holds a read until `count` reads are held, or until the programs sleep.
    fn gather(&self, count: usize) {
        let mut state = locked(&self.state);
        state.gathering += 1;
        state.arrived += 1;
        state.has_gathered |= state.gathering >= count;
        self.moved.notify_all();
        let round = state.rounds;
        while !state.has_gathered && state.rounds == round {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.gathering -= 1;
    }

    /// Releases the reads held by `gather` whenever the programs sleep, until enough have gathered.
    fn watch(&self, programs: &Programs) {
        let (mut last_arrived, mut quiet_looks) = (0, 0);
        loop {
            let idle = |state: &mut GateState| state.gathering == 0 && !state.has_gathered;
            let state = self.moved.wait_while(locked(&self.state), idle);
            if state.unwrap_or_else(PoisonError::into_inner).has_gathered {
                return;
            }
            std::thread::sleep(LOOK_PERIOD);
            let all_sleep = programs.all_sleep();
            let mut state = locked(&self.state);
            quiet_looks = if all_sleep && state.arrived == last_arrived { quiet_looks + 1 } else { 0 };
            last_arrived = state.arrived;
            if quiet_looks == QUIET_LOOKS {
                (state.rounds, quiet_looks) = (state.rounds + 1, 0);
                self.moved.notify_all();
            }
        }
    }

    fn let_go(&self, count: usize, errno: Option<i32>) {
        let mut state = locked(&self.state);
        for _ in 0..count {
            let Some((ticket, _)) = state.held.pop_first() else { break };
            if let Some(errno) = errno {
                state.failing.insert(ticket, errno);
            }
        }
        self.moved.notify_all();
    }

    fn open(&self) {
        let mut state = locked(&self.state);
        (state.holds_reads, state.holds_openings) = (0..0, false);
        drop(state);
        self.let_go(usize::MAX, None);
    }

    /// Returns the waiting reads as JSON.
    fn held(&self) -> String {
        let state = locked(&self.state);
        let reads = state.held.values().filter_map(|asked| match asked {
            Asked::Read { offset, len } => Some(format!("[{offset}, {len}]")),
            Asked::Opening => None,
        });
        format!("[{}]", reads.collect::<Vec<_>>().join(", "))
    }

    /// Executes one line of input and returns the answer.
    fn obey(&self, line: &str, counts: &Counts) -> Outcome<String> {
        match *line.split_whitespace().collect::<Vec<_>>() {
            ["hold", "reads", from, to] => {
                let range = from.parse()?..to.parse()?;
                locked(&self.state).holds_reads = range;
            }
            ["hold", "openings"] => locked(&self.state).holds_openings = true,
            ["wait", count] => {
                let count: usize = count.parse()?;
                let waits = |state: &mut GateState| state.held.len() < count;
                drop(self.moved.wait_while(locked(&self.state), waits));
            }
            ["held"] => return Ok(self.held()),
            ["release", count] => self.let_go(count.parse()?, None),
            ["fail", count, errno] => self.let_go(count.parse()?, Some(errno.parse()?)),
            ["open"] => self.open(),
            ["counts"] => return Ok(counts.json()),
            _ => return Err(format!("{line:?} is not known").into()),
        }
        Ok("null".into())
    }
}

/// Processes that have opened or looked up a file of the mount.
#[derive(Debug, Default)]
struct Programs {
    /// Process IDs by thread ID.
    of_threads: Mutex<HashMap<u32, u32>>,
}

impl Programs {
    fn note(&self, thread: u32) {
        locked(&self.of_threads).entry(thread).or_insert_with(|| {
            let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
            field(&status, "Tgid:").and_then(|number| number.parse().ok()).unwrap_or(thread)
        });
    }

    /// Returns whether no thread is running or runnable.
    fn all_sleep(&self) -> bool {
        let processes: BTreeSet<u32> = locked(&self.of_threads).values().copied().collect();
        // A process or a thread may have ended meanwhile.
        let tasks = processes.iter().flat_map(|process| fs::read_dir(format!("/proc/{process}/task")));
        let mut tasks = tasks.flatten().flatten();
        tasks.all(|task| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            field(&status, "State:") != Some("R")
        })
    }
}

/// Returns the first word after a name in a file like `/proc/self/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()
}

/// Numbers are never reused, because sources are small.
#[derive(Debug, Default)]
struct Numbers {
    paths: Vec<PathBuf>,
    of: HashMap<PathBuf, u64>,
}

#[derive(Debug)]
struct Mirror {
    options: Arc<Options>,
    counts: Arc<Counts>,
    gate: Arc<Gate>,
    programs: Arc<Programs>,
    /// When all granted bytes will have passed at this bandwidth.
    passed: Mutex<Instant>,
    numbers: Mutex<Numbers>,
    open: Mutex<HashMap<u64, Arc<File>>>,
    next_handle: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mirror {
    fn new(options: Arc<Options>, counts: Arc<Counts>, gate: Arc<Gate>, programs: Arc<Programs>) -> Self {
        let mirror = Self {
            options,
            counts,
            gate,
            programs,
            passed: Mutex::new(Instant::now()),
            numbers: Mutex::default(),
            open: Mutex::default(),
            next_handle: AtomicU64::new(1),
        };
        // The first number is 1, the number of the root.
        mirror.number(&mirror.options.source);
        mirror
    }

    fn number(&self, path: &Path) -> u64 {
        let mut numbers = locked(&self.numbers);
        if let Some(known) = numbers.of.get(path) {
            return *known;
        }
        numbers.paths.push(path.into());
        let number = numbers.paths.len() as u64;
        numbers.of.insert(path.into(), number);
        number
    }

    fn path(&self, number: INodeNo) -> Result<PathBuf, Errno> {
        let place = u64::from(number).checked_sub(1).ok_or(Errno::ENOENT)?;
        locked(&self.numbers).paths.get(place as usize).cloned().ok_or(Errno::ENOENT)
    }

    fn attributes(&self, path: &Path) -> Result<FileAttr, Errno> {
        let found = fs::metadata(path).map_err(Errno::from)?;
        let time = |seconds: i64, nanoseconds: i64| {
            let nanoseconds = nanoseconds.max(0) / self.options.time_step * self.options.time_step;
            std::time::UNIX_EPOCH + Duration::new(seconds.max(0) as u64, nanoseconds as u32)
        };
        Ok(FileAttr {
            ino: INodeNo(self.number(path)),
            size: found.len(),
            blocks: found.blocks(),
            atime: time(found.atime(), found.atime_nsec()),
            mtime: time(found.mtime(), found.mtime_nsec()),
            ctime: time(found.ctime(), found.ctime_nsec()),
            crtime: std::time::UNIX_EPOCH,
            kind: kind(&found),
            perm: (found.mode() & 0o555) as u16,
            nlink: 1,
            uid: found.uid(),
            gid: found.gid(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn is_refused(&self, call: RefusedCall, flags: OpenFlags) -> bool {
        flags.0 & libc::O_DIRECT != 0 && self.options.refuse_direct == Some(call)
    }

    fn bytes(&self, handle: FileHandle, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let number = self.counts.requests.fetch_add(1, Ordering::Relaxed);
        let in_flight = self.counts.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.counts.most_in_flight.fetch_max(in_flight, Ordering::Relaxed);
        self.counts.largest_request_bytes.fetch_max(u64::from(size), Ordering::Relaxed);
        if let Some(power) = size.checked_ilog2() {
            self.counts.bytes_by_size[power as usize].fetch_add(u64::from(size), Ordering::Relaxed);
        }
        if let Some(count) = self.options.gather
            && offset >= HEADER_BYTES
        {
            self.gate.gather(count);
        }
        std::thread::sleep(self.options.delay);
        let passed = self.gate.pass(Asked::Read { offset, len: size });
        let answer = passed.and_then(|()| self.answer(number, handle, offset, size));
        if let Ok(bytes) = &answer {
            self.wait_for_bandwidth(bytes.len() as u64);
        }
        self.counts.in_flight.fetch_sub(1, Ordering::Relaxed);
        answer
    }

    /// Waits until the earlier reads and this one have passed at the bandwidth.
    fn wait_for_bandwidth(&self, bytes: u64) {
        let Some(bandwidth_bytes) = self.options.bandwidth_bytes else { return };
        let takes = Duration::from_nanos((bytes * 1_000_000_000).div_ceil(bandwidth_bytes.get()));
        let end = {
            let mut passed = locked(&self.passed);
            *passed = (*passed).max(Instant::now()) + takes;
            *passed
        };
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
    }

    fn answer(&self, number: u64, handle: FileHandle, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let broken = &self.options.fail_range;
        let is_broken = offset < broken.end && broken.start < offset + u64::from(size);
        if number >= self.options.fail_after || is_broken {
            return Err(Errno::from_i32(self.options.errno));
        }
        let file = locked(&self.open).get(&u64::from(handle)).cloned().ok_or(Errno::EBADF)?;
        let size = if self.options.short_reads { size.div_ceil(2) } else { size };
        let mut bytes = vec![0; size as usize];
        let mut good = 0;
        while good < bytes.len() {
            match file.read_at(&mut bytes[good..], offset + good as u64) {
                Ok(0) => break,
                Ok(more) => good += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        bytes.truncate(good);
        self.counts.bytes.fetch_add(good as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

fn kind(found: &Metadata) -> FileType {
    if found.is_dir() { FileType::Directory } else { FileType::RegularFile }
}

impl Filesystem for Mirror {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let background = self.options.background.unwrap_or(self.options.threads);
        if let Err(nearest) = config.set_max_background(background) {
            let _ = config.set_max_background(nearest);
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.programs.note(request.pid());
        match self.path(parent).and_then(|parent| self.attributes(&parent.join(name))) {
            Ok(attributes) => reply.entry(&self.options.attributes_hold, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.counts.attributes.fetch_add(1, Ordering::Relaxed);
        match self.path(number).and_then(|path| self.attributes(&path)) {
            Ok(attributes) => reply.attr(&self.options.attributes_hold, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.programs.note(request.pid());
        if self.is_refused(RefusedCall::Open, flags) {
            return reply.error(Errno::EINVAL);
        }
        std::thread::sleep(self.options.open_delay);
        if let Err(errno) = self.gate.pass(Asked::Opening) {
            return reply.error(errno);
        }
        let file = self.path(number).and_then(|path| File::open(path).map_err(Errno::from));
        match file {
            Ok(file) => {
                self.counts.openings.fetch_add(1, Ordering::Relaxed);
                let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
                locked(&self.open).insert(handle, Arc::new(file));
                let mut flags = FopenFlags::empty();
                flags.set(FopenFlags::FOPEN_DIRECT_IO, self.options.direct_io);
                flags.set(FopenFlags::FOPEN_KEEP_CACHE, self.options.keep_cache);
                reply.opened(FileHandle(handle), flags);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if self.is_refused(RefusedCall::Read, flags) {
            return reply.error(Errno::EINVAL);
        }
        match self.bytes(handle, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        locked(&self.open).remove(&u64::from(handle));
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.path(number).and_then(|path| fs::read_dir(path).map_err(Errno::from));
        let Ok(listed) = listed else { return reply.error(Errno::EIO) };
        let mut paths: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for (place, path) in paths.iter().enumerate().skip(offset as usize) {
            let (Ok(found), Some(name)) = (fs::metadata(path), path.file_name()) else { continue };
            if reply.add(INodeNo(self.number(path)), place as u64 + 1, kind(&found), name) {
                break;
            }
        }
        reply.ok();
    }
}

/// Blocks SIGTERM and SIGINT in this thread and in threads that it starts later.
fn block_signals() -> libc::sigset_t {
    let mut signals = std::mem::MaybeUninit::uninit();
    // SAFETY: it initialises the set.
    unsafe { libc::sigemptyset(signals.as_mut_ptr()) };
    // SAFETY: initialised just now.
    let mut signals = unsafe { signals.assume_init() };
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the set is initialised, and the signal exists.
        unsafe { libc::sigaddset(&raw mut signals, signal) };
    }
    // SAFETY: the set is initialised, and the old set may be null.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut()) };
    signals
}

/// Executes the input until it ends or a signal arrives.
fn wait_for_the_end(signals: libc::sigset_t, gate: Arc<Gate>, counts: Arc<Counts>) {
    let (stop, stopped) = mpsc::channel();
    let also_stop = stop.clone();
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: the set is initialised, and `signal` can be written.
        unsafe { libc::sigwait(&raw const signals, &raw mut signal) };
        let _ = stop.send(());
    });
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            println!("{}", gate.obey(&line, &counts).unwrap_or_else(|error| format!("\"{error}\"")));
            let _ = std::io::stdout().flush();
        }
        let _ = also_stop.send(());
    });
    let _ = stopped.recv();
}

fn main() -> Outcome<()> {
    let options = Arc::new(options()?);
    let signals = block_signals();
    let counts = Arc::new(Counts::default());
    let mut config = Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("slow_fuse".into())];
    if let Some(bytes) = options.request_bytes {
        config.mount_options.push(MountOption::CUSTOM(format!("max_read={bytes}")));
    }
    config.n_threads = Some(usize::from(options.threads));
    let gate = Arc::new(Gate::default());
    let programs = Arc::new(Programs::default());
    if options.gather.is_some() {
        let (gate, programs) = (gate.clone(), programs.clone());
        std::thread::spawn(move || gate.watch(&programs));
    }
    let mirror = Mirror::new(options.clone(), counts.clone(), gate.clone(), programs);
    let session = fuser::spawn_mount(mirror, &options.mount, &config)?;
    println!("ready");
    std::io::stdout().flush()?;
    wait_for_the_end(signals, gate.clone(), counts.clone());
    println!("{}", counts.json());
    std::io::stdout().flush()?;
    // Unmounts lazily first: an open file would prevent a normal unmount.
    Command::new("fusermount3").arg("-uz").arg(&options.mount).status()?;
    gate.open();
    drop(session);
    Ok(())
}
