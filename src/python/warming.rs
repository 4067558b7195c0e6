//! `Warming`: reads tensors of a checkpoint before the program requests them. The Python package `weights/` has the
//! documentation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::checkpoint::PyCheckpoint;
use super::export::drop_detached;
use super::stream::{readers_of, wants_of};
use crate::error::{Error, Result};
use crate::fetch::crew::PERIOD;
use crate::mapped_file::Mode;
use crate::warming::warm::Warming;

#[pyclass(name = "Warming", module = "pagestream._native", frozen)]
pub struct PyWarming {
    /// `None` only during `drop`.
    warming: Option<Arc<Warming>>,
}

impl PyWarming {
    fn warming(&self) -> PyResult<&Warming> {
        self.warming.as_deref().ok_or_else(|| PyValueError::new_err("gone"))
    }
}

#[pymethods]
impl PyWarming {
    /// Starts to read, and replaces the checkpoint's previous warming.
    #[new]
    fn new(
        py: Python<'_>,
        checkpoint: &PyCheckpoint,
        wanted: &Bound<'_, PyList>,
        memory_bytes: Option<u64>,
        threads: Option<usize>,
    ) -> PyResult<Self> {
        let readers = readers_of(threads)?;
        let wants = wants_of(checkpoint, wanted)?;
        let (files, slot) = (checkpoint.shared(), checkpoint.warm_slot());
        let warming = py.detach(|| -> Result<_> {
            if files.files.is_closed() {
                return Err(Error::Closed { path: files.paths.first().cloned().unwrap_or_default() });
            }
            slot.replace(None); // Free its memory before allocating more.
            let is_cached = |number| files.files.facts(number).mode == Mode::Shared;
            let all = files.clone();
            let open = Arc::new(move |number| all.file(number)?.file.opened());
            let warming = Arc::new(Warming::start(wants, is_cached, open, memory_bytes, readers)?);
            slot.replace(Some(warming.clone()));
            if files.files.is_closed() {
                slot.replace(None); // Another thread closed it meanwhile.
            }
            Ok(warming)
        })?;
        Ok(Self { warming: Some(warming) })
    }

    /// The state: "reading", "done", "full", "cancelled" or "failed".
    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        Ok(self.warming()?.state().word())
    }

    #[getter]
    fn planned_bytes(&self) -> PyResult<u64> {
        Ok(self.warming()?.planned_bytes())
    }

    /// Bytes of the plan that were read, or found in the page cache.
    #[getter]
    fn done_bytes(&self) -> PyResult<u64> {
        Ok(self.warming()?.done_bytes())
    }

    #[getter]
    fn read_bytes(&self) -> PyResult<u64> {
        Ok(self.warming()?.read_bytes())
    }

    /// Waits until the warming reads nothing more unless a consumer takes a tensor. Returns false after `timeout` seconds.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let warming = self.warming()?;
        let begun = Instant::now();
        let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
        let timeout =
            timeout.map_err(|_| PyValueError::new_err("timeout must be seconds, at least 0, or None"))?;
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            if py.detach(|| warming.wait(left.unwrap_or(PERIOD).min(PERIOD)))? {
                return Ok(true);
            }
            py.check_signals()?;
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
        }
    }

    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.warming.as_ref().map(|warming| warming.cancel()));
    }
}

impl Drop for PyWarming {
    fn drop(&mut self) {
        drop_detached(self.warming.take());
    }
}
