//! [`Offer`]: an open file for other processes of the same user, which take it instead of opening the file again.
//!
//! Sharing is off until the program calls [`share`], because a process that offers files opens sockets and hands out
//! descriptors.
//!
//! On FUSE, each `open` drops the file's pages from the page cache, unless the daemon disables this. The dropped pages
//! include pages read ahead by another process and mapped pages in use. A process that reads ahead therefore offers its
//! open file description (open(2)), and a process that is about to open the same file asks for it.
//!
//! ```text
//!   claim ──(open the file)──> Offer: a thread answers ──(the last owner closes the file)──> kept ──(20 s)──> the name is free
//!     └──(that failed)─────────────────────────────────────────────────────────────────────────────────────────────▲
//! ```
//!
//! A closed file is kept for processes that started later. Otherwise they would read everything again, and never catch
//! up.
//!
//! [`take`] asks for the file at a path, by device and inode. [`take_or_claim`] does the same. If no process offers the
//! file, it claims the right to offer it, so that no other process opens it in between. A taken file must be the file
//! at the path, unchanged since it was opened. If file times are whole seconds, two states can look alike, and the file
//! is not taken.
//!
//! The name is an abstract socket address, derived from the user, the mount namespace and the file. Another user can
//! bind it first. Then each process opens the file itself. It also does so while a forked child holds the inherited
//! socket. Both ends check each other's rights (`os::file::pass`).
//!
//! Files on local disks are not offered.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::os::errno::Code;
use crate::os::file::open::{self, Identity};
use crate::os::file::pass::{self, Outlet};
use crate::os::process::{fork, thread};

use super::identity::{is_same_file, tells_states_apart};
use super::origin::Origin;

const STACK_BYTES: usize = 128 << 10;
/// Limit of offered files per process. Each takes a few descriptors and a thread.
const MAX_OFFERS: u32 = 64;
static OFFERS: AtomicU32 = AtomicU32::new(0);
/// Limit of offered files that are kept after the last owner has closed them.
const MAX_KEPT: u32 = 32;
static KEPT: AtomicU32 = AtomicU32::new(0);
/// Time for which a closed file is kept. Processes of one job start to load within seconds.
const KEPT_FOR: Duration = Duration::from_secs(20);
/// Whether files are offered and taken.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// The last folder looked at, and whether it is on a local disk.
static LAST_FOLDER: Mutex<Option<(PathBuf, bool)>> = Mutex::new(None);
/// Version of [`FileStamp`].
const VERSION: u64 = 1;

/// The state of a file, as sent.
type FileStamp = [[u8; 8]; 8];

/// Number of tries for a name that was just taken, and the pause between them.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(1);

/// Sets whether this process offers files to other processes of the user and takes theirs.
pub fn share(is_on: bool) {
    IS_ON.store(is_on, Ordering::Relaxed);
}

/// Returns whether files are offered and taken.
pub fn is_sharing() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// The right to offer the file of a path.
#[derive(Debug)]
pub(super) struct OfferRight(Outlet);

/// A thread that answers requests for a file. It ends some time after this value is dropped.
#[derive(Debug)]
struct Offer {
    outlet: Arc<Outlet>,
    files: Arc<Mutex<OfferedFiles>>,
    process: u64,
}

/// State shared by the thread and the owner.
#[derive(Debug, Default)]
struct OfferedFiles {
    files: Vec<Arc<OwnedFd>>,
    kept: Option<One>,
}

/// An open file description that another owner shares.
#[derive(Debug)]
pub(super) struct TakenFile {
    pub file: OwnedFd,
    pub identity: Identity,
    /// The description for the owner's read-ahead requests.
    pub adviser: Option<OwnedFd>,
}

/// The outcome of a request for a file.
#[derive(Debug)]
pub(super) enum Asked {
    Taken(TakenFile),
    /// No process offers the file.
    Claimed(OfferRight),
    /// The file can neither be taken nor offered.
    Neither,
}

/// State shared by the owners of one open file description in this process.
#[derive(Debug, Default)]
pub(super) struct Offering {
    /// Whether the file was taken from another owner.
    pub is_taken: bool,
    /// A second description, unused by page faults. `None` once used.
    pub adviser: Mutex<Option<Arc<OwnedFd>>>,
    is_tried: AtomicBool,
    offer: OnceLock<Option<Offer>>,
}

impl Offering {
    pub fn of_taken() -> Self {
        Self { is_taken: true, ..Self::default() }
    }

    /// Offers the file. Best effort: without a thread, or beyond [`MAX_OFFERS`], the file is not offered.
    pub fn begin(
        &self,
        claim: OfferRight,
        identity: &Identity,
        file: &Arc<OwnedFd>,
        adviser: Option<&Arc<OwnedFd>>,
    ) {
        if tells_states_apart(identity) {
            let files = [Some(file), adviser].into_iter().flatten();
            fork::get_or_make(&self.offer, || Offer::new(claim, identity, files));
        }
    }

    /// Returns whether this is the first call.
    pub fn is_first_try(&self) -> bool {
        !self.is_tried.load(Ordering::Relaxed) && !self.is_tried.swap(true, Ordering::Relaxed)
    }
}

impl Offer {
    fn new<'f>(
        OfferRight(outlet): OfferRight,
        identity: &Identity,
        files: impl Iterator<Item = &'f Arc<OwnedFd>>,
    ) -> Option<Self> {
        let offered = One::of(&OFFERS, MAX_OFFERS)?;
        let outlet = Arc::new(outlet);
        let files = OfferedFiles { files: files.cloned().collect(), kept: None };
        let files = Arc::new(Mutex::new(files));
        let offer = Self { outlet: outlet.clone(), files: files.clone(), process: fork::generation() };
        let state = stamp_of(identity);
        let builder = Builder::new().name("pagestream-offer".into()).stack_size(STACK_BYTES);
        let serve = move || {
            let copies = || lock(&files).files.iter().map_while(|file| file.try_clone().ok()).collect();
            outlet.serve(state.as_flattened(), copies);
            drop((std::mem::take(&mut *lock(&files)), offered));
        };
        thread::start(builder, serve).ok()?;
        Some(offer)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        // A forked child leaves its parent's offer alone. It lacks the thread, which may have locked the files.
        if self.process != fork::generation() {
            self.files.try_lock().map(|mut offered| std::mem::take(&mut *offered)).ok();
            return;
        }
        let mut offered = lock(&self.files);
        offered.kept = One::of(&KEPT, MAX_KEPT);
        if offered.kept.is_some() {
            self.outlet.close_at(Instant::now() + KEPT_FOR);
        } else {
            // The owner's file must be closed when this returns, even if the thread still runs.
            offered.files.clear();
            self.outlet.close();
        }
    }
}

/// One of a limited number of items.
#[derive(Debug)]
struct One(&'static AtomicU32);

impl One {
    fn of(count: &'static AtomicU32, most: u32) -> Option<Self> {
        let one_more = |count| (count < most).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Self(count))
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Locks the files of an offer of this process.
fn lock(files: &Mutex<OfferedFiles>) -> MutexGuard<'_, OfferedFiles> {
    files.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the file that another owner offers for a path.
pub(super) fn take(origin: &Origin) -> Option<TakenFile> {
    let named = offered_as(origin)?;
    ask(origin, &named).ok()?
}

/// Takes the file that another owner offers for a path, or claims the right to offer it.
pub(super) fn take_or_claim(origin: &Origin) -> Asked {
    let Some(named) = offered_as(origin) else { return Asked::Neither };
    for _ in 0..TRIES {
        match ask(origin, &named) {
            Ok(taken) => return taken.map_or(Asked::Neither, Asked::Taken),
            Err(Code::CONNREFUSED | Code::CONNRESET) => {}
            Err(_) => return Asked::Neither,
        }
        match Outlet::open(&name_of(&named)) {
            Ok(outlet) => return Asked::Claimed(OfferRight(outlet)),
            // Another process was faster, or the previous owner's thread has not ended, or a forked child still holds
            // the socket.
            Err(Code::ADDRINUSE) => std::thread::sleep(PAUSE),
            Err(_) => return Asked::Neither,
        }
    }
    Asked::Neither
}

/// Claims the right to offer a file.
pub(super) fn claim(origin: &Origin) -> Option<OfferRight> {
    Outlet::open(&name_of(&offered_as(origin)?)).ok().map(OfferRight)
}

/// Asks for a file. Returns `None` if the path now leads to another file, or if the answer is not this file, open for
/// reading.
fn ask(origin: &Origin, named: &Identity) -> Result<Option<TakenFile>, Code> {
    let mut state = FileStamp::default();
    let files = pass::ask(&name_of(named), state.as_flattened_mut())?;
    if !files.iter().all(|file| pass::is_for_reading(file.as_fd())) {
        return Ok(None);
    }
    let mut files = files.into_iter();
    let (file, adviser) = (files.next().ok_or(Code::CONNRESET)?, files.next());
    let identity = open::identity_now(file.as_fd())?;
    let is_named = origin.identity().is_some_and(|named| is_same_file(&named, &identity));
    let is_untouched = stamp_of(&identity) == state && tells_states_apart(&identity);
    let is_allowed = || open::may_read(&origin.path().absolute);
    let adviser = adviser.filter(|adviser| {
        open::identity(adviser.as_fd()).is_ok_and(|advised| is_same_file(&advised, &identity))
    });
    Ok((is_named && is_untouched && is_allowed()).then_some(TakenFile { file, identity, adviser }))
}

/// Returns whether the folder of a file is on a local disk. The answer may be out of date after a mount. Then this
/// process either does not ask for files, or asks in vain.
fn is_local(origin: &Origin) -> bool {
    let path = &origin.path().absolute;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let known = |last: &mut Option<(PathBuf, bool)>| {
        last.as_ref().filter(|(known, _)| known == folder).map(|last| last.1)
    };
    fork::with_lock(&LAST_FOLDER, known).unwrap_or_else(|| {
        let is_local = open::is_on_block_device(folder);
        fork::with_lock(&LAST_FOLDER, |last| *last = Some((folder.into(), is_local)));
        is_local
    })
}

/// Returns the identity of the file at a path, which is the same for all paths to it. `None` if its file system is not
/// shared.
fn offered_as(origin: &Origin) -> Option<Identity> {
    if !is_sharing() || is_local(origin) { None } else { origin.identity() }
}

/// Returns the name at which this user's processes with the same mounts offer a file.
fn name_of(named: &Identity) -> Vec<u8> {
    let mounts = pass::mount_namespace().unwrap_or_default();
    // Test processes that run side by side must not see each other.
    let tests = if cfg!(test) { std::process::id() } else { 0 };
    let (user, device, inode) = (pass::this_user(), named.device, named.inode);
    format!("pagestream/{user}/{mounts}/{device}/{inode}/{tests}").into_bytes()
}

fn stamp_of(identity: &Identity) -> FileStamp {
    let &Identity { device, inode, size, modified, changed, .. } = identity;
    let seconds = [modified.0, changed.0].map(i64::cast_unsigned);
    let parts = [modified.1, changed.1].map(i64::cast_unsigned);
    [VERSION, device, inode, size, seconds[0], parts[0], seconds[1], parts[1]].map(u64::to_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_file::{MappedFile, RequestedMode};

    /// A file in memory: not on a local disk.
    fn file() -> (tempfile::TempDir, PathBuf) {
        share(true);
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let path = folder.path().join("file");
        write_at_part_of_a_second(&path);
        (folder, path)
    }

    /// Writes a file at a time with a fraction of a second.
    fn write_at_part_of_a_second(path: &Path) {
        std::fs::write(path, b"bytes").expect("written");
        while changed_at(path).1 == 0 {
            std::fs::write(path, b"bytes").expect("written");
        }
    }

    fn changed_at(path: &Path) -> (i64, i64) {
        open::identity_at(path).expect("a file").changed
    }

    fn offered(path: &Path) -> MappedFile {
        let file = MappedFile::take_or_offer(&Origin::of(path), RequestedMode::Auto).expect("opened");
        assert!(!file.opened().expect("open").offering.is_taken);
        file
    }

    fn is_taken(path: &Path) -> bool {
        take(&Origin::of(path)).is_some()
    }

    #[test]
    fn an_offered_file_is_taken_even_after_its_owner_closed_it() {
        let (_folder, path) = file();
        assert!(!is_taken(&path));
        let owner = offered(&path);
        let other = MappedFile::take_or_offer(&Origin::of(&path), RequestedMode::Auto).expect("opened");
        assert!(other.opened().expect("open").offering.is_taken);
        let [one, another] = [&owner, &other].map(|file| file.facts().identity);
        assert!(is_same_file(&one, &another));
        owner.close();
        assert!(is_taken(&path));
        assert!(other.opened().expect("open").read(0, 5).is_ok_and(|bytes| &*bytes == b"bytes"));
    }

    #[test]
    fn the_count_stays_within_its_limit() {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let two = [One::of(&COUNT, 2), One::of(&COUNT, 2)];
        assert!(two.iter().all(Option::is_some));
        assert!(One::of(&COUNT, 2).is_none());
        drop(two);
        assert!(One::of(&COUNT, 2).is_some());
    }

    #[test]
    fn a_changed_file_is_not_taken() {
        let (_folder, path) = file();
        let _owner = offered(&path);
        assert!(is_taken(&path));
        let modified = std::fs::metadata(&path).and_then(|found| found.modified()).expect("times");
        let (written, before) =
            (std::fs::File::options().write(true).open(&path).expect("opened"), changed_at(&path));
        // Repeat until the clock has moved: its steps are some milliseconds long.
        while changed_at(&path) == before {
            std::fs::write(&path, b"other").expect("written");
            written.set_modified(modified).expect("set back");
        }
        assert_eq!(written.metadata().and_then(|found| found.modified()).ok(), Some(modified));
        assert!(!is_taken(&path));
    }

    #[test]
    fn a_renamed_file_is_not_taken() {
        let (folder, path) = file();
        let _owner = offered(&path);
        let other = folder.path().join("other");
        std::fs::write(&other, b"other").expect("written");
        std::fs::rename(&other, &path).expect("renamed");
        assert!(!is_taken(&path));
        assert!(matches!(take_or_claim(&Origin::of(&path)), Asked::Claimed(_)), "it can be offered itself");
    }

    #[test]
    fn a_file_is_taken_by_any_of_its_paths() {
        let (folder, path) = file();
        let _owner = offered(&path);
        let [hard, symbolic] = ["hard", "symbolic"].map(|name| folder.path().join(name));
        std::fs::hard_link(&path, &hard).expect("linked");
        std::os::unix::fs::symlink(&path, &symbolic).expect("linked");
        // A new link changes the file's ctime.
        assert!(!is_taken(&hard));
        let (folder, path) = (folder.path().join("again"), folder.path().join("again/file"));
        std::fs::create_dir(&folder).expect("made");
        write_at_part_of_a_second(&path);
        let _owner = offered(&path);
        std::os::unix::fs::symlink(&folder, folder.with_extension("link")).expect("linked");
        assert!(is_taken(&folder.with_extension("link").join("file")));
    }

    #[test]
    fn a_file_whose_folder_was_replaced_is_not_taken() {
        let (folder, _) = file();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).expect("made");
        let path = inner.join("file");
        write_at_part_of_a_second(&path);
        let _owner = offered(&path);
        assert!(is_taken(&path));
        // The file itself has not changed.
        std::fs::rename(&inner, folder.path().join("before")).expect("renamed");
        std::fs::create_dir(&inner).expect("made");
        std::fs::write(&path, b"other").expect("written");
        assert!(!is_taken(&path));
    }

    #[test]
    fn times_in_whole_seconds_do_not_distinguish_states() {
        let (_folder, path) = file();
        let identity = offered(&path).facts().identity;
        assert!(tells_states_apart(&identity));
        let seconds = |(seconds, _)| (seconds, 0);
        let coarse =
            Identity { changed: seconds(identity.changed), modified: seconds(identity.modified), ..identity };
        assert!(!tells_states_apart(&coarse));
        assert_ne!(stamp_of(&coarse), stamp_of(&identity));
    }

    #[test]
    fn a_process_that_claims_a_file_is_awaited() {
        let (_folder, path) = file();
        let origin = Origin::of(&path);
        let Asked::Claimed(claim) = take_or_claim(&origin) else { panic!("somebody offers it") };
        let asking = std::thread::spawn(move || is_taken(&path));
        let opened = MappedFile::open_again(&origin, RequestedMode::Auto)
            .and_then(|file| file.opened())
            .expect("open");
        assert!(opened.open_adviser(Asked::Claimed(claim)).is_ok());
        assert!(asking.join().expect("no panic"));
    }
}
