//! Python's audit hooks ([PEP 578](https://peps.python.org/pep-0578/)): an event before each file is opened.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::error::{Error, Result};

/// Raises an event before native code opens or lists something, and keeps a hook's refusal.
#[derive(Default)]
pub struct AuditGate {
    refusal: Mutex<Option<PyErr>>,
}

impl AuditGate {
    /// Raises `event`, attached to the interpreter; an error if one of the hooks raises.
    pub fn ask(&self, event: impl FnOnce(Python<'_>) -> PyResult<()>) -> Result<()> {
        Python::attach(event).map_err(|raised| {
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
