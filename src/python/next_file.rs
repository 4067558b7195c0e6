//! [`NextFile`]: the file that probably follows another one, for the lead of that file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use super::files::audit_open;
use crate::error::Result;
use crate::leading::lead::Handover;
use crate::mapped_file::RequestedMode;
use crate::os::file::open::{self, Kind};
use crate::os::process::thread;

/// Opens the file and begins to read it, for a program that continues as in the previous file. Runs in a thread of its
/// own. The program meets any failure itself.
///
/// The flag tells whether the program has the previous file open.
type GoOn = dyn Fn(&Handover, &Arc<AtomicBool>) -> Result<()> + Send + Sync;

/// The file that probably follows another one.
pub struct NextFile {
    path: PathBuf,
    mode: RequestedMode,
    go_on: Arc<GoOn>,
    is_begun: AtomicBool,
}

impl NextFile {
    pub fn new(
        path: PathBuf,
        mode: RequestedMode,
        go_on: impl Fn(&Handover, &Arc<AtomicBool>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { path, mode, go_on: Arc::new(go_on), is_begun: AtomicBool::new(false) }
    }

    pub fn is_begun(&self) -> bool {
        self.is_begun.load(Ordering::Relaxed)
    }

    /// Begins to read the file, once. An audit hook can prevent it.
    pub fn begin(&self, py: Python<'_>, handover: Handover, is_used: Arc<AtomicBool>) -> PyResult<()> {
        if self.is_begun.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        match audit_open(py, &self.path, self.mode) {
            Err(refusal) if refusal.is_instance_of::<PyException>(py) => return Ok(()),
            asked => asked?,
        }
        let (go_on, path) = (self.go_on.clone(), self.path.clone());
        let builder = Builder::new().name("pagestream-next".into());
        // Best effort: without a thread, or after a failure, the program opens the file itself.
        drop(thread::start(builder, move || {
            // The program has not asked for this file, and opening a device can have side effects.
            if open::identity_at(&path).is_ok_and(|found| found.kind == Kind::RegularFile) {
                drop(go_on(&handover, &is_used));
            }
        }));
        Ok(())
    }
}
