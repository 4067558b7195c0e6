//! An open file, as it was when it was opened or refreshed: its facts, its mappings, and checks for changes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::error::{Error, ReadCause, Result};
use crate::os::errno::{Code, describe, system};
use crate::os::fault;
use crate::os::file::beneath::path_of;
use crate::os::file::fsinfo;
use crate::os::file::open::{self, Identity};
use crate::os::memory::advise::{self, Advice};
use crate::os::memory::map::{Mapping, Region};
use crate::os::process::{fork, limits};

use super::direct::DirectFile;
use super::given_path::GivenPath;
use super::identity::{change, changed, is_gone, is_unchanged, rewrite};
use super::mode::{self, Mode, RequestedMode};
use super::offer::{self, Asked, Offering};
use super::origin::Origin;
use super::view_counts::ViewCounts;

/// While tensors are handed out, the server is asked for the file's size at most this often.
const ASK_EVERY_MS: u64 = 1000;
static START: OnceLock<Instant> = OnceLock::new();

fn ms_since_start() -> u64 {
    fork::get_or_make(&START, Instant::now).elapsed().as_millis() as u64
}

/// Facts from the opening or the last refresh.
#[derive(Debug, Clone)]
pub struct Facts {
    pub mode: Mode,
    /// Why the first choice of mode does not work, or `None` if it works.
    pub reason: Option<String>,
    pub identity: Identity,
}

/// Hints given to the kernel. Shared by every mapping of one descriptor.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Hints {
    /// Advice for the whole file.
    pub advice: Option<Advice>,
    /// Whether the file is locked in memory.
    pub locked: bool,
    /// Number of readers that keep read-ahead off.
    pub exact_readers: usize,
    /// Whether the descriptor has twice the usual read-ahead.
    pub is_widened: bool,
}

/// The file as it was when it was opened or refreshed.
#[derive(Debug)]
pub struct Opened {
    pub(super) named: GivenPath,
    file: Arc<OwnedFd>,
    pub facts: Facts,
    /// The mapping; `None` in `read` mode and for an empty file.
    pub region: Option<Arc<Region>>,
    /// The mode that the caller asked for.
    requested: RequestedMode,
    copy_on_write: OnceLock<Result<Arc<Region>, Code>>,
    pub(super) view_counts: Arc<ViewCounts>,
    pub(super) hints: Arc<Mutex<Hints>>,
    pub(super) direct: OnceLock<DirectFile>,
    pub(super) offering: Arc<Offering>,
    /// Duration of a small read, if it is slow.
    pub request_time: OnceLock<Duration>,
    /// The most bytes that the kernel fetches per request.
    pub(super) ahead_chunk_bytes: OnceLock<u64>,
    /// Whether the kernel shows this user which pages are cached.
    pub(super) residency_is_told: OnceLock<bool>,
    /// Number of copied pages that end in zeros, and the number of these that the server has confirmed.
    zero_tails: AtomicU64,
    known_zero_tails: AtomicU64,
    /// Time of the last request for attributes, in milliseconds since [`START`].
    asked_ms: AtomicU64,
    /// Holds reads in tests.
    #[cfg(test)]
    pub gate: OnceLock<Arc<super::gate::ReadGate>>,
}

/// A range of a mapping, kept mapped by this value.
#[derive(Debug, Clone)]
pub struct View {
    region: Option<Arc<Region>>,
    offset: usize,
    len: usize,
}

impl View {
    /// Returns the first byte; dangling but not null for an empty view. See [`Region::as_ptr`].
    pub fn as_ptr(&self) -> *const u8 {
        let empty = std::ptr::NonNull::<u64>::dangling().as_ptr().cast_const().cast();
        self.region.as_ref().map_or(empty, |region| region.as_ptr().wrapping_add(self.offset))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it is a view of this mapping.
    pub(super) fn is_of(&self, region: &Arc<Region>) -> bool {
        self.region.as_ref().is_some_and(|own| Arc::ptr_eq(own, region))
    }

    /// Returns whether dropping this view unmaps the mapping.
    pub fn is_last(&self) -> bool {
        self.region.as_ref().is_some_and(|region| Arc::strong_count(region) == 1)
    }

    /// Returns an error for a damaged mapping. Call this each time before the memory is handed out.
    pub fn check_damage(&self) -> Result<()> {
        fault::reinstall_sometimes();
        self.region.as_deref().map_or(Ok(()), Region::check_damage)
    }
}

impl Opened {
    pub(super) fn new(
        path: &GivenPath,
        file: Arc<OwnedFd>,
        identity: Identity,
        requested: RequestedMode,
        hints: Arc<Mutex<Hints>>,
        offering: Offering,
    ) -> Result<Self> {
        let found = mode::find(file.as_fd(), &path.given, identity.size, requested)?;
        Ok(Self {
            named: path.clone(),
            file,
            facts: Facts { mode: found.mode, reason: found.reason, identity },
            region: found.region.map(Arc::new),
            requested,
            copy_on_write: OnceLock::new(),
            view_counts: Arc::default(),
            hints,
            direct: OnceLock::new(),
            offering: Arc::new(offering),
            request_time: OnceLock::new(),
            ahead_chunk_bytes: OnceLock::new(),
            residency_is_told: OnceLock::new(),
            zero_tails: AtomicU64::new(0),
            known_zero_tails: AtomicU64::new(0),
            asked_ms: AtomicU64::new(ms_since_start()),
            #[cfg(test)]
            gate: OnceLock::new(),
        })
    }

    /// Returns the file at another size, or mapped again, with the same descriptor and hints.
    pub(super) fn again(&self, identity: Identity) -> Result<Self> {
        let offering = Offering::default();
        Self::new(&self.named, self.file.clone(), identity, self.requested, self.hints.clone(), offering)
    }

    /// Returns the same file for another user, with its own copy-on-write pages.
    pub(super) fn for_another(&self) -> Self {
        Self {
            named: self.named.clone(),
            file: self.file.clone(),
            facts: self.facts.clone(),
            region: self.region.clone(),
            requested: self.requested,
            copy_on_write: OnceLock::new(),
            view_counts: Arc::default(),
            hints: self.hints.clone(),
            direct: OnceLock::new(),
            offering: self.offering.clone(),
            request_time: self.request_time.clone(),
            ahead_chunk_bytes: self.ahead_chunk_bytes.clone(),
            residency_is_told: self.residency_is_told.clone(),
            zero_tails: AtomicU64::new(0),
            known_zero_tails: AtomicU64::new(0),
            asked_ms: AtomicU64::new(ms_since_start()),
            #[cfg(test)]
            gate: self.gate.clone(),
        }
    }

    /// Opens the file again, which on FUSE drops its cached pages, and offers it if that right was claimed.
    pub(super) fn open_adviser(&self, asked: Asked) -> Result<Arc<OwnedFd>, Code> {
        let adviser = Arc::new(open::reopen(self.file())?);
        if let Asked::Claimed(claim) = asked {
            self.offering.begin(claim, &self.facts.identity, &self.file, Some(&adviser));
        }
        Ok(adviser)
    }

    /// Offers the file to other processes of this user, before it is read through the page cache: on FUSE its pages
    /// would be lost if they opened it.
    pub fn offer(&self) {
        if self.offering.is_first_try()
            && self.may_read_from_cache()
            && let Some(claim) = offer::claim(&Origin::Path(self.named.clone()))
        {
            self.offering.begin(claim, &self.facts.identity, &self.file, None);
        }
    }

    /// Identifies the file's mount.
    pub fn mount_number(&self) -> (u64, u64) {
        (self.facts.identity.device, fsinfo::mount_number(self.file()))
    }

    /// The path as the caller gave it.
    pub fn path(&self) -> &Path {
        &self.named.given
    }

    pub fn size(&self) -> u64 {
        self.facts.identity.size
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the file's path without links, if the system knows it.
    pub fn real_path(&self) -> Option<PathBuf> {
        path_of(self.file())
    }

    /// Rejects a range that does not lie inside the file. Every number from a caller or a file is checked here before
    /// it is used as a range.
    pub fn check_range(&self, offset: u64, length: u64) -> Result<()> {
        let size = self.size();
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Error::OutOfRange { path: self.path().into(), offset, length, size }),
        }
    }

    /// Returns a range of the read-only mapping, or `None` in `read` mode, which has no mapping. A fault in it does not
    /// end the process, unless another library puts its handler in front.
    pub fn view(&self, offset: u64, length: u64) -> Result<Option<View>> {
        self.prepare_view(offset, length)?;
        let view = || View { region: self.region.clone(), offset: offset as usize, len: length as usize };
        Ok((self.facts.mode != Mode::Read).then(view))
    }

    /// Returns a range of a second mapping, whose pages become private memory when written. `None` in `read` mode, and
    /// if this file cannot be mapped that way.
    pub fn copy_on_write_view(&self, offset: u64, length: u64) -> Result<Option<View>> {
        self.prepare_view(offset, length)?;
        let view = |region| View { region, offset: offset as usize, len: length as usize };
        Ok(self.copy_on_write_region().ok().map(view))
    }

    /// Returns a range for arrays that only a Python flag makes read-only. Code that does not know the flag, for
    /// example torch, may write to them: this changes copy-on-write pages and not the file. If the caller asked for a
    /// shared mapping, or such pages do not exist, the range belongs to the read-only mapping. There such a write ends
    /// the process.
    pub fn array_view(&self, offset: u64, length: u64) -> Result<Option<View>> {
        let written = match self.requested {
            RequestedMode::Shared => None,
            _ => self.copy_on_write_view(offset, length)?,
        };
        if written.is_some() {
            return Ok(written);
        }
        let read_only = self.view(offset, length)?;
        if read_only.is_some() {
            fault::tell_of_writes();
        }
        Ok(read_only)
    }

    /// Returns why the pages of arrays are not writable, or `None` if they are.
    pub fn read_only_pages_reason(&self) -> Option<String> {
        match self.requested {
            RequestedMode::Shared => Some("mode \"shared\" was asked for".into()),
            _ => self.copy_on_write_refusal(),
        }
    }

    /// Returns whether the next view of this kind needs no system call.
    pub fn has_copy_on_write(&self) -> bool {
        self.copy_on_write.get().is_some()
    }

    fn prepare_view(&self, offset: u64, length: u64) -> Result<()> {
        self.check_range(offset, length)?;
        self.check_damage()?;
        fault::reinstall();
        Ok(())
    }

    /// Returns why [`Self::copy_on_write_view`] returns nothing, or `None` if it returns a view.
    pub fn copy_on_write_refusal(&self) -> Option<String> {
        let Some(errno) = self.copy_on_write_region().err()? else {
            return Some(self.facts.reason.clone().unwrap_or_else(|| "as was asked for".into()));
        };
        let limit = match errno {
            Code::NOMEM => limits::explain_private_memory(self.size()),
            _ => String::new(),
        };
        Some(format!("MAP_PRIVATE with PROT_WRITE: {}{limit}", describe(errno)))
    }

    /// Returns the second mapping, or `None` for an empty file. The error is `None` in `read` mode.
    fn copy_on_write_region(&self) -> Result<Option<Arc<Region>>, Option<Code>> {
        if self.facts.mode == Mode::Read {
            return Err(None);
        }
        if self.size() == 0 {
            return Ok(None);
        }
        let map = || {
            let region = Region::map(self.file(), self.path(), self.size() as usize, Mapping::CopyOnWrite)?;
            if let Some(advice) = fork::with_lock(&self.hints, |hints| hints.advice) {
                let _ = advise::advise_map(&region, 0, region.len(), advice);
            }
            Ok(Arc::new(region))
        };
        fork::get_or_make(&self.copy_on_write, map).clone().map(Some).map_err(Some)
    }

    /// Returns an error for a file with a damaged mapping, or one that the kernel knows to be truncated. The rest of
    /// the page at the new end reads as zeros, without a signal.
    pub fn check_damage(&self) -> Result<()> {
        self.regions().try_for_each(Region::check_damage)?;
        let is_cut =
            self.region.is_some() && open::known_size(self.file()).is_ok_and(|size| size < self.size());
        if is_cut { self.verify() } else { Ok(()) }
    }

    /// Returns true at most once per [`ASK_EVERY_MS`]. The caller then [asks the server](Self::ask_server) for the
    /// file's size before it hands out views. Until then the kernel assumes the old size, and bytes that the server has
    /// lost read as zeros, without a signal.
    pub fn is_time_to_ask(&self) -> bool {
        let (last, now) = (self.asked_ms.load(Ordering::Relaxed), ms_since_start());
        now.saturating_sub(last) >= ASK_EVERY_MS
            && !self.facts.identity.is_on_block_device()
            && self.asked_ms.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Makes the kernel ask for the file's size, if it would do so for stat(2). Best effort.
    pub fn ask_server(&self) {
        let _ = open::known_size_and_change(self.file());
    }

    /// Returns the mapping with copy-on-write pages, if it exists.
    pub(super) fn copy_on_write(&self) -> Option<&Arc<Region>> {
        self.copy_on_write.get().and_then(|region| region.as_ref().ok())
    }

    /// Returns whether any view of a mapping exists.
    pub fn has_views(&self) -> bool {
        self.region.iter().chain(self.copy_on_write()).any(|region| Arc::strong_count(region) > 1)
    }

    /// Returns all mappings with possible views.
    pub(super) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.region.iter().chain(self.copy_on_write()).map(|region| &**region)
    }

    /// Returns an error for a truncated or rewritten file. Call this after ranges were copied.
    ///
    /// A file that has been written to is not trusted, even if it is larger now: it may have been truncated and written
    /// again. A page of a mapping does not show where a file ends, so the server is asked under the same conditions as
    /// in [`open::identity`]. For positioned reads the kernel's knowledge is enough. After zeros at the end of a page
    /// the server is always asked: it may have lost these bytes while the kernel assumes the old size.
    pub fn verify(&self) -> Result<()> {
        self.verify_range(0, self.size())
    }

    pub(super) fn verify_range(&self, offset: u64, length: u64) -> Result<()> {
        let known = &self.facts.identity;
        let zero_tails = self.zero_tails.load(Ordering::Acquire);
        let are_known = zero_tails <= self.known_zero_tails.load(Ordering::Acquire);
        if are_known
            && self.region.is_none()
            && open::known_size_and_change(self.file()) == Ok((known.size, known.modified))
        {
            return Ok(());
        }
        let now = if are_known { self.identity_now()? } else { self.identity_of_server()? };
        if now.size < offset + length {
            let cause = ReadCause::Truncated { size_at_open: known.size, size_now: now.size };
            // The range that is missing now.
            let (first, end) = (offset.max(now.size), offset + length);
            return Err(Error::MappedRead {
                path: self.path().into(),
                offset: first,
                length: end - first,
                cause,
            });
        }
        if is_unchanged(known, &now) {
            self.known_zero_tails.fetch_max(zero_tails, Ordering::Release);
            Ok(())
        } else {
            Err(self.change_or_rewrite(&now))
        }
    }

    /// Records that a copied page ends in zeros. For a local disk the kernel knows the true size.
    pub(super) fn note_zero_tail(&self) {
        if !self.facts.identity.is_on_block_device() {
            self.zero_tails.fetch_add(1, Ordering::Release);
        }
    }

    /// Same as [`Self::verify`], without a request to the server. On network mounts the kernel's attributes may be some
    /// seconds old.
    pub fn verify_as_known(&self) -> Result<()> {
        let known = &self.facts.identity;
        let is_known = open::known_size_and_change(self.file()) == Ok((known.size, known.modified));
        if is_known { Ok(()) } else { self.verify() }
    }

    /// Same as [`Self::verify`], but always asks the server. The kernel's attributes may be as old as their time limit,
    /// for example 60 s on NFS.
    pub fn verify_with_server(&self) -> Result<()> {
        let known = &self.facts.identity;
        let now = open::size_and_change_now(self.file()).map_err(|errno| self.cannot_stat(errno))?;
        if now == (known.size, known.modified) {
            return Ok(());
        }
        // The kernel's attributes are fresh now, and show the change.
        self.verify()?;
        Err(rewrite(self.path(), known, &self.identity_now()?))
    }

    /// Returns the identity of the open file.
    pub(super) fn identity_now(&self) -> Result<Identity> {
        open::identity(self.file()).map_err(|errno| self.cannot_stat(errno))
    }

    /// Returns the identity of the open file, as the server knows it.
    pub(super) fn identity_of_server(&self) -> Result<Identity> {
        open::identity_now(self.file()).map_err(|errno| self.cannot_stat(errno))
    }

    /// Returns the error for a changed file.
    pub(super) fn change_or_rewrite(&self, now: &Identity) -> Error {
        let known = &self.facts.identity;
        change(self.path(), known, now).unwrap_or_else(|| rewrite(self.path(), known, now))
    }

    fn cannot_stat(&self, errno: Code) -> Error {
        // A server reports this for an open file, and so do FUSE daemons that look files up by path.
        if is_gone(errno.raw_os_error()) {
            return changed(
                self.path(),
                format!("the server has deleted or replaced it: {}", describe(errno)),
            );
        }
        let advice = "the storage behind the file failed; open it again once it is back";
        system("cannot stat the open file", self.path(), errno, advice)
    }
}
