//! [`MappedFile`]: a path and the file currently open at it.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::error::{Error, Result};
use crate::os::errno::{describe, system};
use crate::os::fault;
use crate::os::file::fsinfo::{self, FileSystem};
use crate::os::file::open::{self, Identity};
use crate::os::process::fork::{self, Section};

use super::given_path::GivenPath;
use super::identity::{change, changed, is_same_file, is_unchanged, tells_states_apart};
use super::mode::{self, RequestedMode};
use super::offer::{self, Asked, Offering, TakenFile};
use super::opened::{Facts, Opened};
use super::origin::{Folder, Origin};
use super::page_cache;

/// A regular file, open for reading.
#[derive(Debug)]
pub struct MappedFile {
    path: GivenPath,
    /// The place from which to open the file again.
    pub origin: Origin,
    /// Whether the path led to the file when it was opened.
    is_named: bool,
    pub requested: RequestedMode,
    current: RwLock<Current>,
    file_system: OnceLock<FileSystem>,
}

#[derive(Debug)]
struct Current {
    /// `None` once closed.
    opened: Option<Arc<Opened>>,
    /// Facts of the last [`Opened`], also after closing.
    facts: Facts,
}

impl MappedFile {
    pub fn open(path: &Path, requested: RequestedMode) -> Result<Self> {
        Self::open_again(&Origin::of(path), requested)
    }

    /// Opens a file of a folder. Fails with EXDEV if a name or a link leads out of the folder.
    pub fn open_beneath(folder: &Arc<Folder>, name: &Path, requested: RequestedMode) -> Result<Self> {
        Self::open_again(&Origin::Beneath(folder.clone(), name.into()), requested)
    }

    /// Opens a file at its origin.
    pub fn open_again(origin: &Origin, requested: RequestedMode) -> Result<Self> {
        let opened = match origin {
            Origin::Path(path) => mode::open_regular(path)?,
            Origin::Beneath(folder, name) => mode::regular(folder.open_file(name)?, &origin.path().given)?,
        };
        Self::of_regular(opened, origin.clone(), requested, Offering::default())
    }

    /// Takes the file that another process has open and offers, or opens it.
    pub fn take_or_open(origin: &Origin, requested: RequestedMode) -> Result<Self> {
        match offer::take(origin) {
            Some(taken) => Self::of_taken(taken, origin, requested),
            None => Self::open_again(origin, requested),
        }
    }

    /// Same as [`Self::take_or_open`], for a file that is read ahead at once. An opened file is offered from now on.
    pub fn take_or_offer(origin: &Origin, requested: RequestedMode) -> Result<Self> {
        let asked = match offer::take_or_claim(origin) {
            Asked::Taken(taken) => return Self::of_taken(taken, origin, requested),
            asked => asked,
        };
        let file = Self::open_again(origin, requested)?;
        let opened = file.opened()?;
        if opened.may_read_from_cache() {
            // Best effort: without a second description, requests to the kernel use the first.
            let adviser = opened.open_adviser(asked).ok();
            fork::with_lock(&opened.offering.adviser, |kept| *kept = adviser);
        }
        Ok(file)
    }

    fn of_taken(taken: TakenFile, origin: &Origin, requested: RequestedMode) -> Result<Self> {
        let TakenFile { file, identity, .. } = taken;
        Self::of_regular((file, identity), origin.clone(), requested, Offering::of_taken())
    }

    /// Creates a file from a copy of a descriptor that is open for reading; the caller keeps its own. `path` is for
    /// messages and [`Self::check`].
    pub fn from_descriptor(descriptor: RawFd, path: &Path, requested: RequestedMode) -> Result<Self> {
        let copy = open::duplicate(descriptor).map_err(|errno| {
            let advice = mode::open_advice(path, errno);
            system("cannot duplicate the descriptor", path, errno, advice)
        })?;
        let (copy, identity) = mode::regular(copy, path)?;
        let file = Self::of_regular((copy, identity), Origin::of(path), requested, Offering::default())?;
        // The file may have no name (memfd_create(2), O_TMPFILE, deleted by now), or `path` may be made up.
        let is_named = open::identity_at(file.absolute()).is_ok_and(|found| is_same_file(&found, &identity));
        Ok(Self { is_named, ..file })
    }

    fn of_regular(
        (file, identity): (OwnedFd, Identity),
        origin: Origin,
        requested: RequestedMode,
        offering: Offering,
    ) -> Result<Self> {
        let path = origin.path().into_owned();
        let opened = Opened::new(&path, Arc::new(file), identity, requested, Arc::default(), offering)?;
        let facts = opened.facts.clone();
        Ok(Self {
            path,
            origin,
            is_named: true,
            requested,
            current: RwLock::new(Current { opened: Some(Arc::new(opened)), facts }),
            file_system: OnceLock::new(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path.given
    }

    /// The absolute form of [`Self::path`], which stays valid after a change of directory.
    pub fn absolute(&self) -> &Path {
        &self.path.absolute
    }

    pub fn facts(&self) -> Facts {
        self.with_current(|current| current.facts.clone())
    }

    pub fn size(&self) -> u64 {
        self.with_current(|current| current.facts.identity.size)
    }

    pub fn is_closed(&self) -> bool {
        self.with_current(|current| current.opened.is_none())
    }

    /// Returns the open file, or an error once it is closed.
    pub fn opened(&self) -> Result<Arc<Opened>> {
        self.opened_in(&fork::section())
    }

    /// Returns the open file after putting the SIGBUS handler back in front. Every call on a file begins with this one.
    /// Reads and views put the handler back themselves.
    pub fn guarded(&self) -> Result<Arc<Opened>> {
        fault::reinstall();
        self.opened()
    }

    /// Returns the open file, for a caller that is already in a section.
    pub(super) fn opened_in(&self, _section: &Section) -> Result<Arc<Opened>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.opened.clone().ok_or_else(|| Error::Closed { path: self.path().into() })
    }

    /// Calls `look` in a section: a forked child must not inherit a lock that a thread of the parent holds.
    fn with_current<T>(&self, look: impl FnOnce(&Current) -> T) -> T {
        let _section = fork::section();
        look(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the file's mount, looked up at the first call.
    pub fn file_system(&self) -> Result<&FileSystem> {
        if let Some(known) = self.file_system.get() {
            return Ok(known);
        }
        let opened = self.opened()?;
        Ok(fork::get_or_make(&self.file_system, || fsinfo::file_system(opened.file().as_fd())))
    }

    /// Returns an error if the file has changed since it was opened, or if its path no longer names it.
    pub fn check(&self) -> Result<()> {
        let opened = self.guarded()?;
        let (known, now) = (opened.facts.identity, opened.identity_of_server()?);
        let changed = |detail: String| Err(changed(self.path(), detail));
        let at_path = if self.is_named { open::identity_at(self.absolute()).map(Some) } else { Ok(None) };
        // Checked first: a replaced file has no name left, and would pass for a deleted one.
        if let Ok(Some(found)) = at_path
            && !is_same_file(&found, &now)
        {
            return changed("its path now names another file; open it again".into());
        }
        if let Some(error) = change(self.path(), &known, &now) {
            return Err(error);
        }
        if let Err(errno) = at_path {
            return changed(format!("its path no longer leads to it: {}", describe(errno)));
        }
        opened.check_damage()
    }

    /// Returns whether [`Self::is_untouched`] can find out.
    pub fn tells_states_apart(&self) -> bool {
        tells_states_apart(&self.facts().identity)
    }

    /// Returns whether nothing at all was done to the file since it was opened, as its server knows it. Also false if
    /// only links or permissions changed, or if the file's times are too coarse to find out.
    pub fn is_untouched(&self) -> bool {
        let untouched = || {
            let opened = self.opened()?;
            Ok::<_, Error>(opened.identity_of_server()?.changed == opened.facts.identity.changed)
        };
        self.tells_states_apart() && self.check().is_ok() && untouched().unwrap_or(false)
    }

    /// Maps the new length of a file that grew, and returns the new size. Existing views keep the old mapping. Returns
    /// an error if the file changed otherwise. Maps an unchanged file again if its storage had failed.
    pub fn refresh(&self) -> Result<u64> {
        let before = self.guarded()?;
        let (known, now) = (before.facts.identity, before.identity_of_server()?);
        let is_same = is_unchanged(&known, &now);
        if is_same && before.check_damage().is_ok() {
            return Ok(known.size);
        }
        if now.size <= known.size && !is_same {
            return Err(before.change_or_rewrite(&now));
        }
        let opened = before.again(now)?;
        page_cache::reapply_hints(&opened)?;
        let _section = fork::section();
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        // If another thread closed or refreshed the file meanwhile, that result stands.
        let is_older = |theirs: &Arc<Opened>| theirs.size() < now.size || Arc::ptr_eq(theirs, &before);
        if current.opened.as_ref().is_some_and(is_older) {
            current.facts = opened.facts.clone();
            current.opened = Some(Arc::new(opened));
        }
        Ok(current.facts.identity.size)
    }

    /// Closes this file, and returns a new one with the same descriptor and read-only mapping. `None` if this file is
    /// closed.
    pub fn hand_over(&self) -> Option<Self> {
        let (opened, facts) = {
            let _section = fork::section();
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            (current.opened.take()?, current.facts.clone())
        };
        Some(self.over(opened.for_another(), facts))
    }

    /// Returns a file with the same descriptor and read-only mapping, but with copy-on-write pages of its own.
    pub fn with_own_pages(&self) -> Result<Self> {
        let opened = self.opened()?;
        Ok(self.over(opened.for_another(), opened.facts.clone()))
    }

    fn over(&self, opened: Opened, facts: Facts) -> Self {
        Self {
            path: self.path.clone(),
            origin: self.origin.clone(),
            is_named: self.is_named,
            requested: self.requested,
            current: RwLock::new(Current { opened: Some(Arc::new(opened)), facts }),
            file_system: self.file_system.clone(),
        }
    }

    /// Closes the descriptor, and unmaps unless views exist. Calls in progress finish.
    pub fn close(&self) {
        let last = {
            let _section = fork::section();
            self.current.write().unwrap_or_else(PoisonError::into_inner).opened.take()
        };
        drop(last);
    }
}
