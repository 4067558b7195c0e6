//! Python's audit hooks ([PEP 578](https://peps.python.org/pep-0578/)): an event before each file is opened.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use super::files::audit_open;
use crate::error::{Error, Result};
use crate::mapped_file::RequestedMode;

/// Raises the event `pagestream.open` for each file that native threads open, and keeps a hook's refusal.
pub struct AuditGate {
    mode: RequestedMode,
    refusal: Mutex<Option<PyErr>>,
}

impl AuditGate {
    pub fn new(mode: RequestedMode) -> Self {
        Self { mode, refusal: Mutex::default() }
    }

    /// Asks the hooks, attached to the interpreter; an error if one of them raises.
    pub fn ask(&self, path: &Path) -> Result<()> {
        Python::attach(|py| audit_open(py, path, self.mode)).map_err(|raised| {
            self.refusal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(raised);
            Error::argument("an audit hook refused to open the file")
        })
    }

    /// The result of opening; the hook's own exception where one raised.
    pub fn result<T>(self, opened: Result<T>) -> PyResult<T> {
        match self.refusal.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(raised) => Err(raised),
            None => Ok(opened?),
        }
    }
}
