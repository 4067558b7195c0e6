//! The limit of the device: windows at random places, read past the page cache (O_DIRECT) in whole pages, with a fixed
//! number of requests in flight. Other engines read through the page cache for comparison.
//!
//! ```text
//! direct_reader FILE --window-bytes 2050 [--count 20000 | --offsets FILE] [--seed 1] [--align 2]
//!               [--engine uring] [--depth 64] [--helpers 0] [--evict 1] [--checksum 1]
//! ```
//!
//! | engine | |
//! |---|---|
//! | `uring`, `threads` | O_DIRECT with io_uring, or with `depth` threads that call pread |
//! | `pread` | through the page cache, with `depth` threads |
//! | `mapped` | a mapping with MADV_RANDOM, one thread, no read-ahead |
//! | `willneed` | the same, with MADV_WILLNEED for a window's pages `depth` windows ahead |
//! | `fadvise` | the same, with posix_fadvise instead of madvise |
//! | `touch` | the same, but `helpers` threads read a byte of each page ahead |
//!
//! `--helpers` threads give the advice instead of the reader itself. `--evict 1` first drops the file from the page
//! cache, and fails if more than one page in a hundred stays. `--offsets` is a file of little-endian u64 numbers, the
//! first bytes of the windows. Prints one line of JSON. The checksum is the sum of the windows' bytes, modulo 2^64.
//! Each byte is multiplied by its position in its window plus one, so that other programs can read the same windows and
//! compare. `--checksum 0` skips it: with windows of 1 MiB in order, the result is the sequential rate.
#![allow(unsafe_code)] // The kernel writes to buffers.

use pagestream::internals::{
    Advice, MappedFile, Mapping, Region, RequestedMode, Uninit, advise_file, advise_map, install_and_check,
    page_cache,
};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use io_uring::{IoUring, opcode, types};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PAGE_BYTES: usize = 4096;

struct Options {
    path: String,
    window_bytes: usize,
    count: usize,
    offsets: Option<String>,
    seed: u64,
    align: u64,
    depth: usize,
    engine: String,
    helpers: usize,
    evict: bool,
    checksum: bool,
}

fn options() -> Outcome<Options> {
    let mut options = Options {
        path: String::new(),
        window_bytes: 0,
        count: 20_000,
        offsets: None,
        seed: 1,
        align: 2,
        depth: 64,
        engine: "uring".into(),
        helpers: 0,
        evict: false,
        checksum: true,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix("--") else {
            options.path = word;
            continue;
        };
        let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
        match name {
            "window-bytes" => options.window_bytes = value.parse()?,
            "count" => options.count = value.parse()?,
            "offsets" => options.offsets = Some(value),
            "seed" => options.seed = value.parse()?,
            "align" => options.align = value.parse()?,
            "depth" => options.depth = value.parse()?,
            "engine" => options.engine = value,
            "helpers" => options.helpers = value.parse()?,
            "evict" => options.evict = value == "1",
            "checksum" => options.checksum = value == "1",
            _ => return Err(format!("--{name} {value} is not known").into()),
        }
    }
    if options.path.is_empty() || options.window_bytes == 0 || options.depth == 0 || options.align == 0 {
        return Err("FILE and --window-bytes are needed; --depth and --align are at least 1".into());
    }
    Ok(options)
}

/// Returns the first bytes of the windows.
fn offsets(options: &Options, size: u64) -> Outcome<Vec<u64>> {
    let last = size.checked_sub(options.window_bytes as u64).ok_or("the file is shorter than a window")?;
    let offsets = if let Some(path) = &options.offsets {
        let bytes = std::fs::read(path)?;
        bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
    } else {
        // splitmix64, <https://prng.di.unimi.it/splitmix64.c>
        let mut state = options.seed;
        let places = last / options.align + 1;
        let next = |_| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut word = state;
            word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (word ^ (word >> 31)) % places * options.align
        };
        (0..options.count).map(next).collect::<Vec<u64>>()
    };
    match offsets.iter().find(|offset| **offset > last) {
        Some(offset) => Err(format!("a window at byte {offset} of a file of {size}").into()),
        None => Ok(offsets),
    }
}

#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; PAGE_BYTES]);

/// Room for one request, aligned for O_DIRECT.
struct Slot {
    pages: Vec<Page>,
}

impl Slot {
    fn new(window_bytes: usize) -> Self {
        Self { pages: vec![Page([0; PAGE_BYTES]); window_bytes.div_ceil(PAGE_BYTES) + 1] }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let length = self.pages.len() * PAGE_BYTES;
        // SAFETY: pages are arrays of bytes without padding, one after the other.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), length) }
    }
}

/// Returns where the pages of a window begin, and their size. The last page may extend past the end of the file.
fn pages_of(offset: u64, window_bytes: usize) -> (u64, usize) {
    let page = PAGE_BYTES as u64;
    let start = offset / page * page;
    (start, ((offset - start) as usize + window_bytes).div_ceil(PAGE_BYTES) * PAGE_BYTES)
}

fn checksum(window: &[u8]) -> u64 {
    window.iter().zip(1_u64..).fold(0, |sum, (byte, place)| sum.wrapping_add(u64::from(*byte) * place))
}

#[derive(Default)]
struct Totals {
    bytes: u64,
    checksum: u64,
}

impl Totals {
    fn add(&mut self, slot: &mut Slot, read: usize, offset: u64, options: &Options) -> Outcome<()> {
        let window_bytes = options.window_bytes;
        let within = (offset % PAGE_BYTES as u64) as usize;
        let window =
            slot.bytes().get(within..within + window_bytes).filter(|_| read >= within + window_bytes);
        let window =
            window.ok_or_else(|| format!("only {read} bytes were read for the window at {offset}"))?;
        if options.checksum {
            self.checksum = self.checksum.wrapping_add(checksum(window));
        }
        self.bytes += read as u64;
        Ok(())
    }
}

fn with_uring(file: &File, offsets: &[u64], options: &Options) -> Outcome<Totals> {
    let (window_bytes, depth) = (options.window_bytes, options.depth);
    let mut ring = IoUring::new(depth.next_power_of_two() as u32)?;
    let mut slots: Vec<Slot> = (0..depth).map(|_| Slot::new(window_bytes)).collect();
    let mut window_of = vec![0; depth];
    let mut free: Vec<usize> = (0..depth).collect();
    let mut totals = Totals::default();
    let (mut next, mut done) = (0, 0);
    while done < offsets.len() {
        while let Some(slot) = free.pop_if(|_| next < offsets.len()) {
            let (start, length) = pages_of(offsets[next], window_bytes);
            let target = slots[slot].bytes().as_mut_ptr();
            let read = opcode::Read::new(types::Fd(file.as_raw_fd()), target, length as u32)
                .offset(start)
                .build()
                .user_data(slot as u64);
            // SAFETY: the slot is not used until its completion is seen, and it outlives the ring's operations.
            unsafe { ring.submission().push(&read)? };
            window_of[slot] = next;
            next += 1;
        }
        ring.submit_and_wait(1)?;
        let finished: Vec<_> = ring.completion().collect();
        for entry in finished {
            let slot = entry.user_data() as usize;
            if entry.result() < 0 {
                // Operations in flight still write to the slots, so these are leaked until the process ends.
                std::mem::forget(slots);
                return Err(std::io::Error::from_raw_os_error(-entry.result()).into());
            }
            let offset = offsets[window_of[slot]];
            totals.add(&mut slots[slot], entry.result() as usize, offset, options)?;
            free.push(slot);
            done += 1;
        }
    }
    Ok(totals)
}

fn with_threads(file: &File, offsets: &[u64], options: &Options) -> Outcome<Totals> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        let work = || -> Outcome<()> {
            let mut slot = Slot::new(options.window_bytes);
            let mut totals = Totals::default();
            while let Some(offset) = offsets.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (start, length) = pages_of(*offset, options.window_bytes);
                let read = file.read_at(&mut slot.bytes()[..length], start)?;
                totals.add(&mut slot, read, *offset, options)?;
            }
            let mut all = all.lock().map_err(|_| "a thread panicked")?;
            all.bytes += totals.bytes;
            all.checksum = all.checksum.wrapping_add(totals.checksum);
            Ok(())
        };
        let threads: Vec<_> = (0..options.depth).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    Ok(all.into_inner().map_err(|_| "a thread panicked")?)
}

/// Runs one reader on a mapping. The reader itself, or helper threads, advise a few windows ahead.
fn with_mapping(file: &File, offsets: &[u64], options: &Options) -> Outcome<Totals> {
    let size = file.metadata()?.len() as usize;
    let region = Region::map(file.as_fd(), std::path::Path::new(""), size, Mapping::Shared)
        .map_err(std::io::Error::from)?;
    advise_map(&region, 0, size, Advice::Random).map_err(std::io::Error::from)?;
    if !install_and_check() {
        return Err("the SIGBUS handler is not in place".into());
    }
    let window_bytes = options.window_bytes;
    let ahead = |offset: u64| -> std::io::Result<()> {
        match options.engine.as_str() {
            "willneed" => advise_map(&region, offset as usize, window_bytes, Advice::WillNeed)?,
            "fadvise" => {
                let (start, length) = pages_of(offset, window_bytes);
                let _ = advise_file(file.as_fd(), start, length as u64, Advice::WillNeed);
            }
            "touch" => {
                let _ = region.touch(offset as usize, window_bytes);
            }
            _ => {}
        }
        Ok(())
    };
    let (reached, claimed, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let mut totals = Totals::default();
    let mut window = vec![0; window_bytes];
    std::thread::scope(|scope| -> Outcome<()> {
        for _ in 0..options.helpers {
            scope.spawn(|| {
                install_and_check();
                while let Some(offset) = offsets.get(claimed.load(Ordering::Relaxed)) {
                    let mine = claimed.load(Ordering::Relaxed);
                    if mine >= reached.load(Ordering::Acquire) + options.depth {
                        std::thread::sleep(std::time::Duration::from_micros(20));
                    } else if claimed
                        .compare_exchange(mine, mine + 1, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok()
                        && ahead(offsets.get(mine).copied().unwrap_or(*offset)).is_err()
                    {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let alone = options.helpers == 0;
        for offset in offsets.iter().take(if alone { options.depth } else { 0 }) {
            ahead(*offset)?;
        }
        for (number, offset) in offsets.iter().enumerate() {
            if let Some(next) = offsets.get(number + options.depth).filter(|_| alone) {
                ahead(*next)?;
            }
            region
                .copy_out(*offset as usize, Uninit::of(&mut window))
                .map_err(|_| "a page cannot be read")?;
            if options.checksum {
                totals.checksum = totals.checksum.wrapping_add(checksum(&window));
            }
            totals.bytes += window_bytes as u64;
            reached.store(number + 1, Ordering::Release);
        }
        Ok(())
    })?;
    if failed.into_inner() > 0 { Err("advice was refused".into()) } else { Ok(totals) }
}

/// Drops the file from the page cache, and verifies that.
fn evict(path: &str) -> Outcome<()> {
    let file = MappedFile::open(path.as_ref(), RequestedMode::Auto)?;
    page_cache::evict(&*file.guarded()?)?;
    let resident = page_cache::residency(&*file.guarded()?, 0, file.size(), 1)?.fraction;
    if resident < 0.01 { Ok(()) } else { Err(format!("{resident} of {path} stays in the page cache").into()) }
}

/// Returns the bytes that this process has read from devices, and its major faults.
fn device_use() -> Outcome<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let faults = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(9));
    Ok((line.unwrap_or("0").parse()?, faults.unwrap_or("0").parse()?))
}

fn main() -> Outcome<()> {
    let options = options()?;
    if options.evict {
        evict(&options.path)?;
    }
    let direct = matches!(options.engine.as_str(), "uring" | "threads");
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&options.path)?;
    if options.engine == "pread" {
        let _ = advise_file(file.as_fd(), 0, file.metadata()?.len(), Advice::Random);
    }
    let offsets = offsets(&options, file.metadata()?.len())?;
    let (bytes_before, faults_before) = device_use()?;
    let start = Instant::now();
    let totals = match options.engine.as_str() {
        "uring" => with_uring(&file, &offsets, &options),
        "threads" | "pread" => with_threads(&file, &offsets, &options),
        "mapped" | "willneed" | "fadvise" | "touch" => with_mapping(&file, &offsets, &options),
        engine => Err(format!("--engine {engine} is not known").into()),
    }?;
    let seconds = start.elapsed().as_secs_f64();
    let (bytes_after, faults_after) = device_use()?;
    println!(
        "{{\"engine\": \"{}\", \"depth\": {}, \"helpers\": {}, \"windows\": {}, \"seconds\": {seconds:.6}, \
         \"windows_per_second\": {:.1}, \"bytes\": {}, \"device_bytes\": {}, \"major_faults\": {}, \
         \"checksum\": {}}}",
        options.engine,
        options.depth,
        options.helpers,
        offsets.len(),
        offsets.len() as f64 / seconds,
        totals.bytes,
        bytes_after - bytes_before,
        faults_after - faults_before,
        totals.checksum
    );
    Ok(())
}
