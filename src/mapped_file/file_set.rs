//! The files of a corpus or checkpoint, with a limit on the number of open files.
//!
//! Each file is opened once at the start, when its header is read. Files stay open up to the limit, because on FUSE
//! each further `open` drops the file's page cache. Any other file is opened again when it is used. It then replaces
//! the least recently used file, approximately (CLOCK algorithm). A reopened file must still be the same file.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::error::{Error, Result, errno_text};
use crate::os::fault;
use crate::os::file::open::Identity;
use crate::os::memory::advise::Advice;
use crate::os::process::{fork, limits};

use super::file::MappedFile;
use super::identity::{identity_at, is_gone, is_same_file, is_unchanged};
use super::mode::RequestedMode;
use super::opened::{Facts, Opened};
use super::origin::Origin;
use super::page_cache;

/// Maximum number of open files of a set.
const MAX_KEPT: usize = 1024;
/// Number of open files that each set may have, regardless of the number of sets.
const MIN_KEPT: usize = 16;
/// Open files that the sets of this process have reserved.
static RESERVED: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
pub struct FileSet {
    members: Vec<Kept>,
    mode: RequestedMode,
    /// Numbers of the open files, in the order of the clock's hand.
    kept: Mutex<VecDeque<usize>>,
    budget: DescriptorBudget,
    closed: AtomicBool,
    advice: Mutex<Option<Advice>>,
}

/// A file after its first opening. It may be closed now.
#[derive(Debug)]
pub struct Kept {
    absolute: PathBuf,
    origin: Origin,
    facts: Facts,
    slot: RwLock<Option<Arc<MappedFile>>>,
    /// Whether the file was used since the hand last passed it.
    used: AtomicBool,
}

/// A reservation of open files, released when dropped.
#[derive(Debug)]
pub struct DescriptorBudget {
    bound: usize,
    reserved: usize,
    taken: AtomicUsize,
}

impl DescriptorBudget {
    pub fn for_files(count: usize) -> Self {
        let limit = limits::nofile();
        let free = (limit / 2).saturating_sub(RESERVED.load(Ordering::Relaxed));
        let bound = MAX_KEPT.min(limit / 4).min(free).max(MIN_KEPT);
        let reserved = bound.min(count);
        RESERVED.fetch_add(reserved, Ordering::Relaxed);
        Self { bound, reserved, taken: AtomicUsize::new(0) }
    }

    /// Takes a place for a file at its first opening. Returns whether a place was left.
    fn take(&self) -> bool {
        self.taken.fetch_add(1, Ordering::Relaxed) < self.bound
    }
}

impl Drop for DescriptorBudget {
    fn drop(&mut self) {
        RESERVED.fetch_sub(self.reserved, Ordering::Relaxed);
    }
}

impl FileSet {
    pub fn new(members: Vec<Kept>, mode: RequestedMode, budget: DescriptorBudget) -> Self {
        let is_open = |index: &usize| members[*index].open_now().is_some();
        let kept = (0..members.len()).filter(is_open).collect();
        let (kept, advice) = (Mutex::new(kept), Mutex::default());
        Self { members, mode, kept, budget, closed: AtomicBool::new(false), advice }
    }

    /// Returns the position of the first of these files with the weakest mode, and the number of files with that mode.
    pub fn weakest(&self, files: impl Iterator<Item = usize> + Clone) -> Option<(usize, usize)> {
        let modes = files.map(|file| self.members[file].facts.mode);
        let weakest = modes.clone().min()?;
        let first = modes.clone().position(|mode| mode == weakest)?;
        Some((first, modes.filter(|&mode| mode == weakest).count()))
    }

    /// Returns the facts found at the first opening.
    pub fn facts(&self, index: usize) -> &Facts {
        &self.members[index].facts
    }

    /// Returns the file's absolute path at the first opening.
    pub fn absolute(&self, index: usize) -> &Path {
        &self.members[index].absolute
    }

    /// Returns the file, and opens it again if necessary. For an open file this takes two uncontended read locks.
    pub fn get(&self, index: usize) -> Result<Arc<MappedFile>> {
        match self.get_open(index) {
            Some(file) => Ok(file),
            None => self.open_again(index),
        }
    }

    /// Returns the file, ready for reading. Threads call this for every row.
    pub fn opened(&self, index: usize) -> Result<Arc<Opened>> {
        let member = &self.members[index];
        {
            // Both locks share one section.
            let section = fork::section();
            let slot = member.slot.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(file) = slot.as_ref() {
                if !member.used.load(Ordering::Relaxed) {
                    member.used.store(true, Ordering::Relaxed);
                }
                return file.opened_in(&section);
            }
        }
        self.open_again(index)?.opened()
    }

    /// Returns the file if it is open. Never waits for storage.
    pub fn get_open(&self, index: usize) -> Option<Arc<MappedFile>> {
        let member = &self.members[index];
        let file = member.open_now()?;
        if !member.used.load(Ordering::Relaxed) {
            member.used.store(true, Ordering::Relaxed);
        }
        Some(file)
    }

    fn open_again(&self, index: usize) -> Result<Arc<MappedFile>> {
        let member = &self.members[index];
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed { path: member.absolute.clone() });
        }
        // Hold no lock here, because storage may be slow. If two threads open the file, the first one to register it
        // wins.
        let file = Arc::new(member.open(self.mode)?);
        if let Some(advice) = fork::with_lock(&self.advice, |advice| *advice) {
            advise_whole(&file, advice)?;
        }
        let gone = {
            let _section = fork::section();
            let mut slot = member.slot.write().unwrap_or_else(PoisonError::into_inner);
            if self.closed.load(Ordering::SeqCst) {
                return Err(Error::Closed { path: member.absolute.clone() });
            }
            if let Some(first) = slot.as_ref() {
                return Ok(first.clone());
            }
            *slot = Some(file.clone());
            member.used.store(true, Ordering::Relaxed);
            drop(slot);
            self.make_room(index)
        };
        drop(gone);
        Ok(file)
    }

    /// Registers a file that was just opened, and returns the files over the limit, for closing.
    fn make_room(&self, newest: usize) -> Vec<Arc<MappedFile>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut victims = Vec::new();
        while kept.len() >= self.budget.bound {
            let Some(index) = kept.pop_front() else { break };
            if self.members[index].used.swap(false, Ordering::Relaxed) {
                kept.push_back(index);
            } else {
                victims.push(index);
            }
        }
        kept.push_back(newest);
        drop(kept);
        let slot_of = |index: usize| self.members[index].slot.write().unwrap_or_else(PoisonError::into_inner);
        victims.into_iter().filter_map(|index| slot_of(index).take()).collect()
    }

    /// Gives the kernel advice about every file, including those opened later.
    pub fn advise(&self, advice: Advice) -> Result<()> {
        fork::with_lock(&self.advice, |last| *last = Some(advice));
        let mut open = self.members.iter().filter_map(Kept::open_now);
        open.try_for_each(|file| advise_whole(&file, advice))
    }

    /// Returns an error if the file has changed since it was first opened, or if its path no longer names it.
    pub fn check(&self, index: usize) -> Result<()> {
        let member = &self.members[index];
        if let Some(file) = member.open_now() {
            return file.check();
        }
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed { path: member.absolute.clone() });
        }
        fault::reinstall();
        match identity_at(&member.absolute) {
            Ok(found) => member.same(&found),
            Err(errno) => Err(member.gone(errno)),
        }
    }

    /// Returns the number of open files.
    pub fn open_count(&self) -> usize {
        fork::with_lock(&self.kept, |kept| kept.len())
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for member in &self.members {
            let file = {
                let _section = fork::section();
                member.slot.write().unwrap_or_else(PoisonError::into_inner).take()
            };
            // Another thread may hold the file for a moment, but the file refuses its calls from now on.
            if let Some(file) = file {
                file.close();
            }
            if let Origin::Beneath(folder, _) = &member.origin {
                folder.close();
            }
        }
        fork::with_lock(&self.kept, VecDeque::clear);
    }
}

impl Kept {
    /// Keeps the file open if the budget has room for it.
    pub fn new(file: MappedFile, budget: &DescriptorBudget) -> Self {
        let (absolute, origin) = (file.absolute().to_owned(), file.origin.clone());
        let facts = file.facts();
        let slot = RwLock::new(budget.take().then(|| Arc::new(file)));
        Self { absolute, origin, facts, slot, used: AtomicBool::new(false) }
    }

    /// Returns the file if it is open.
    fn open_now(&self) -> Option<Arc<MappedFile>> {
        let _section = fork::section();
        self.slot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn open(&self, mode: RequestedMode) -> Result<MappedFile> {
        match MappedFile::open_again(&self.origin, mode) {
            Ok(file) => self.same(&file.facts().identity).map(|()| file),
            Err(Error::System { errno, .. }) if is_gone(errno) => Err(self.gone(errno)),
            Err(error) => Err(error),
        }
    }

    fn same(&self, found: &Identity) -> Result<()> {
        let expected = &self.facts.identity;
        if is_same_file(found, expected) && is_unchanged(found, expected) {
            return Ok(());
        }
        let describe = |of: &Identity| {
            let (seconds, nanoseconds) = of.modified;
            format!(
                "{} bytes, inode {} of device {}, modified at {seconds}.{nanoseconds:09}",
                of.size, of.inode, of.device
            )
        };
        let detail = format!(
            "it is no longer the file that was opened: found {}; expected {}; open them all again",
            describe(found),
            describe(expected)
        );
        Err(Error::FileChanged { path: self.absolute.clone(), detail })
    }

    fn gone(&self, errno: i32) -> Error {
        let detail = format!(
            "its path no longer leads to it: found {}; expected a file of {} bytes; put it back, or open \
             the others without it",
            errno_text(errno),
            self.facts.identity.size
        );
        Error::FileChanged { path: self.absolute.clone(), detail }
    }
}

fn advise_whole(file: &MappedFile, advice: Advice) -> Result<()> {
    page_cache::advise(&*file.guarded()?, advice, 0, file.size()).map(drop)
}
