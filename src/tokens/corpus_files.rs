//! The files that a corpus and its parts share. Each user closes separately, and the last one closes the files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::mapped_file::Opened;
use crate::mapped_file::file_set::FileSet;

#[derive(Debug)]
pub struct CorpusFiles {
    shared: Arc<UsedFiles>,
    closed: AtomicBool,
}

#[derive(Debug)]
struct UsedFiles {
    files: FileSet,
    /// Number of users that have not closed.
    users: AtomicUsize,
}

impl CorpusFiles {
    pub fn new(files: FileSet) -> Self {
        let shared = Arc::new(UsedFiles { files, users: AtomicUsize::new(1) });
        Self { shared, closed: AtomicBool::new(false) }
    }

    /// Creates another user of the same files.
    pub fn share(&self) -> Result<Self> {
        self.check_open(0)?;
        self.shared.users.fetch_add(1, Ordering::SeqCst);
        Ok(Self { shared: self.shared.clone(), closed: AtomicBool::new(false) })
    }

    /// Returns the files, for queries that also work after closing.
    pub fn set(&self) -> &FileSet {
        &self.shared.files
    }

    /// Returns a file, ready for reading; see [`FileSet::opened`].
    pub fn opened(&self, file: usize) -> Result<Arc<Opened>> {
        self.check_open(file)?;
        self.shared.files.opened(file)
    }

    /// Checks a file; see [`FileSet::check`].
    pub fn check(&self, file: usize) -> Result<()> {
        self.check_open(file)?;
        self.shared.files.check(file)
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub fn close(&self) {
        let is_first = !self.closed.swap(true, Ordering::SeqCst);
        if is_first && self.shared.users.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.shared.files.close();
        }
    }

    fn check_open(&self, file: usize) -> Result<()> {
        if self.is_closed() {
            return Err(Error::Closed { path: self.shared.files.absolute(file).to_owned() });
        }
        Ok(())
    }
}

impl Drop for CorpusFiles {
    fn drop(&mut self) {
        self.close();
    }
}
