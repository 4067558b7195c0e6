//! [`MappedFile`]: the one way to open a file.
//!
//! A file is opened once, its descriptor stays open as long as the object (on FUSE each further `open`
//! drops the file's page cache), and it is mapped once per protection. What is handed out, a [`View`],
//! keeps its mapping alive by itself: closing or refreshing the file does not disturb it.

mod damage;
pub mod file_set;
mod identity;
mod mode;
mod origin;
mod page_cache;
mod read;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::error::{Error, Result};
use crate::os::errno::{Code, describe};
use crate::os::fault;
use crate::os::file::fsinfo::{self, FileSystem};
use crate::os::memory::map::{Mapping, Region};
use crate::os::process::fork::{self, Section};
use crate::os::process::limits;

use crate::os::file::open;
pub use crate::os::file::open::{Identity, Kind};
pub use crate::os::memory::advise::Advice;
pub use damage::{on_damage, untold_damage};
pub use identity::{NOT_FOUND, identity_at, is_gone};
pub use mode::{Mode, RequestedMode};
pub use origin::{Beside, Folder, Origin, is_directory, is_refusal};
use page_cache::Hints;
pub use page_cache::{DropBehind, Progress, ResidentPages};
use read::DescriptorAdvice;
pub use read::{RandomReads, Reader};

/// How many descriptors this process may have.
pub fn descriptor_limit() -> usize {
    limits::nofile()
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    /// `path` from the root, for looking it up again after a change of directory.
    absolute: PathBuf,
    origin: Origin,
    /// Whether its path led to it when it was opened.
    is_named: bool,
    requested: RequestedMode,
    state: RwLock<State>,
    file_system: OnceLock<FileSystem>,
    care: Mutex<Hints>,
}

#[derive(Debug)]
struct State {
    /// `None` once closed.
    opened: Option<Arc<Opened>>,
    /// Of the last [`Opened`], for those who ask after closing.
    facts: Facts,
}

/// What was found out when the file was opened or refreshed.
#[derive(Debug, Clone)]
pub struct Facts {
    pub mode: Mode,
    /// Why not the first choice.
    pub reason: Option<String>,
    pub identity: Identity,
}

/// The file as it was at one opening or refresh.
#[derive(Debug)]
pub struct Opened {
    path: PathBuf,
    file: Arc<OwnedFd>,
    facts: Facts,
    region: Option<Arc<Region>>,
    copy_on_write: OnceLock<Result<Arc<Region>, Code>>,
    descriptor_advice: DescriptorAdvice,
    /// Whether the kernel tells this user which pages are cached.
    residency_is_told: OnceLock<bool>,
}

/// A range of a mapping, kept mapped by this value.
#[derive(Debug, Clone)]
pub struct View {
    region: Option<Arc<Region>>,
    offset: usize,
    len: usize,
}

impl View {
    /// The first byte; dangling but not null for an empty view. What [`Region::as_ptr`] says holds.
    pub fn as_ptr(&self) -> *const u8 {
        let empty = std::ptr::NonNull::<u64>::dangling().as_ptr().cast_const().cast();
        self.region.as_ref().map_or(empty, |region| region.as_ptr().wrapping_add(self.offset))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the mapping goes when this view does.
    pub fn is_last(&self) -> bool {
        self.region.as_ref().is_some_and(|region| Arc::strong_count(region) == 1)
    }
}

impl MappedFile {
    pub fn open(path: &Path, requested: RequestedMode) -> Result<Self> {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
        Self::of_regular(mode::open_regular(path)?, path, Origin::Path(absolute), requested)
    }

    fn of_regular(
        (file, identity): (OwnedFd, Identity),
        path: &Path,
        origin: Origin,
        requested: RequestedMode,
    ) -> Result<Self> {
        let opened = Opened::new(path, Arc::new(file), identity, requested)?;
        let facts = opened.facts.clone();
        Ok(Self {
            path: path.into(),
            absolute: std::path::absolute(path).unwrap_or_else(|_| path.into()),
            origin,
            is_named: true,
            requested,
            state: RwLock::new(State { opened: Some(Arc::new(opened)), facts }),
            file_system: OnceLock::new(),
            care: Mutex::new(Hints::default()),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn absolute_path(&self) -> &Path {
        &self.absolute
    }

    /// Where it is found again.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    pub fn requested_mode(&self) -> RequestedMode {
        self.requested
    }

    pub fn facts(&self) -> Facts {
        self.with_state(|state| state.facts.clone())
    }

    pub fn size(&self) -> u64 {
        self.with_state(|state| state.facts.identity.size)
    }

    /// The open file; an error once it is closed.
    ///
    /// Every call on a file begins here, and so puts the handler of bus errors back in front.
    pub fn opened(&self) -> Result<Arc<Opened>> {
        fault::reinstall();
        self.opened_in(&fork::section())
    }

    /// The same for who is in a section already.
    fn opened_in(&self, _section: &Section) -> Result<Arc<Opened>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.opened.clone().ok_or_else(|| Error::Closed { path: self.path.clone() })
    }

    /// A child of a fork must not inherit the lock from a thread that it has not.
    fn with_state<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        let _section = fork::section();
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looked up at the first call.
    pub fn file_system(&self) -> Result<&FileSystem> {
        if let Some(known) = self.file_system.get() {
            return Ok(known);
        }
        let opened = self.opened()?;
        Ok(fork::get_or_make(&self.file_system, || fsinfo::file_system(opened.file.as_fd())))
    }

    /// The file grew: maps the new length and returns the new size. Views that are out keep the old
    /// mapping. A file that changed otherwise is refused. One whose storage failed, and that is the same, is
    /// mapped again.
    pub fn refresh(&self) -> Result<u64> {
        let before = self.opened()?;
        let now = before.identity_now()?;
        let known = before.facts.identity;
        let is_same = now.size == known.size && now.modified == known.modified;
        if is_same && before.check_views().is_ok() {
            return Ok(known.size);
        }
        if now.size <= known.size && !is_same {
            return Err(before.changed(&now).unwrap_or_else(|| before.rewritten(&now)));
        }
        let opened = Opened::new(&self.path, before.file.clone(), now, self.requested)?;
        self.reapply_hints(&opened)?;
        let _section = fork::section();
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        // Closed, or refreshed further, in the meantime: theirs stands.
        let is_current =
            |current: &Arc<Opened>| current.facts.identity.size < now.size || Arc::ptr_eq(current, &before);
        if state.opened.as_ref().is_some_and(is_current) {
            state.facts = opened.facts.clone();
            state.opened = Some(Arc::new(opened));
        }
        Ok(state.facts.identity.size)
    }

    /// Closes the descriptor and, unless views are out, unmaps. Calls that are under way finish.
    pub fn close(&self) {
        let last = {
            let _section = fork::section();
            self.state.write().unwrap_or_else(PoisonError::into_inner).opened.take()
        };
        drop(last);
    }

    pub fn is_closed(&self) -> bool {
        self.with_state(|state| state.opened.is_none())
    }
}

impl Opened {
    fn new(
        path: &Path,
        file: Arc<OwnedFd>,
        mut identity: Identity,
        requested: RequestedMode,
    ) -> Result<Self> {
        let access = mode::access(file.as_fd(), path, identity.size, requested)?;
        // Files that are read are later compared with what the server says, so not with what the kernel may have
        // remembered from before a rewrite.
        if access.mode == Mode::Read
            && let Ok((size, modified)) = open::size_and_change_now(file.as_fd())
        {
            (identity.size, identity.modified) = (size, modified);
        }
        Ok(Self {
            path: path.into(),
            file,
            facts: Facts { mode: access.mode, reason: access.reason, identity },
            region: access.region.map(Arc::new),
            copy_on_write: OnceLock::new(),
            descriptor_advice: DescriptorAdvice::default(),
            residency_is_told: OnceLock::new(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    pub fn size(&self) -> u64 {
        self.facts.identity.size
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The mapping; `None` in `read` mode and for an empty file.
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    /// A range of the read-only mapping; `None` in `read` mode, where there is nothing to view. A fault in it
    /// does not end the process, if no other library puts its handler in front.
    pub fn view(&self, offset: u64, length: u64) -> Result<Option<View>> {
        self.check_range(offset, length)?;
        self.check_views()?;
        fault::reinstall();
        Ok(match (&self.region, self.facts.mode) {
            (None, Mode::Read) => None,
            (region, _) => {
                Some(View { region: region.clone(), offset: offset as usize, len: length as usize })
            }
        })
    }

    /// A range of a second mapping, whose pages become private memory when they are written. `None` in
    /// `read` mode, and where this file cannot be mapped that way.
    pub fn copy_on_write_view(&self, offset: u64, length: u64) -> Result<Option<View>> {
        self.check_range(offset, length)?;
        self.check_views()?;
        let view = |region| View { region, offset: offset as usize, len: length as usize };
        if self.facts.mode == Mode::Read {
            return Ok(None);
        }
        if self.size() == 0 {
            return Ok(Some(view(None)));
        }
        fault::reinstall();
        Ok(self.copy_on_write_region().as_ref().ok().map(|region| view(Some(region.clone()))))
    }

    /// Why [`Self::copy_on_write_view`] gives nothing; `None` if it does.
    pub fn copy_on_write_refusal(&self) -> Option<String> {
        match self.facts.mode {
            Mode::Read => Some(self.facts.reason.clone().unwrap_or_else(|| "as was asked for".into())),
            _ if self.size() == 0 => None,
            _ => self.copy_on_write_region().as_ref().err().map(|&errno| {
                let limit = if errno == Code::NOMEM {
                    limits::explain_private_memory(self.size())
                } else {
                    String::new()
                };
                format!("MAP_PRIVATE with PROT_WRITE: {}{limit}", describe(errno))
            }),
        }
    }

    fn copy_on_write_region(&self) -> &Result<Arc<Region>, Code> {
        fork::get_or_make(&self.copy_on_write, || {
            Region::map(self.file(), &self.path, self.size() as usize, Mapping::CopyOnWrite).map(Arc::new)
        })
    }

    /// Every number that came from a caller or a file passes here before it is used as a range.
    pub fn check_range(&self, offset: u64, length: u64) -> Result<()> {
        let size = self.size();
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Error::OutOfRange { path: self.path.clone(), offset, length, size }),
        }
    }
}
