//! `StoredTensor`: one tensor of an open file. `Checkpoint.read` and the slices of `safetensors/` use it.

use std::ffi::OsString;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use super::error::Raised;
use super::export::{PyExporter, drop_detached, landed_object, range_object};
use super::lead::FileLead;
use super::writable::WritableBuffer;
use crate::error::Error;
use crate::mapped_file::Opened;
use crate::slicing::{self, MAX_READERS, Selection, SlicePlan};
use crate::weights::header::Header;

/// A tensor, whose bytes lie inside the file. It keeps the file open, also when the `WeightFile` is closed.
#[pyclass(name = "StoredTensor", module = "pagestream._native", frozen)]
pub struct PyStoredTensor {
    #[pyo3(get)]
    pub dtype: Py<PyString>,
    #[pyo3(get)]
    pub shape: Py<PyTuple>,
    #[pyo3(get)]
    pub nbytes: u64,
    #[pyo3(get)]
    pub path: OsString,
    pub offset: u64,
    /// `None` only during `drop`.
    pub opened: Option<Arc<Opened>>,
    pub header: Arc<Header>,
    pub lead: Arc<FileLead>,
}

/// Unmaps detached from the interpreter: this may be the last owner of the mapping.
impl Drop for PyStoredTensor {
    fn drop(&mut self) {
        drop_detached(self.opened.take());
    }
}

impl PyStoredTensor {
    fn opened(&self) -> PyResult<&Opened> {
        self.opened.as_deref().ok_or_else(|| PyValueError::new_err("gone"))
    }
}

#[pymethods]
impl PyStoredTensor {
    /// Returns a buffer over `length` bytes of the tensor; None where there is no mapping. With `writable` the buffer
    /// is over copy-on-write pages.
    fn view<'py>(
        &self,
        py: Python<'py>,
        first: u64,
        length: u64,
        writable: bool,
    ) -> PyResult<Option<Bound<'py, PyExporter>>> {
        if length == self.nbytes {
            let opened = || self.opened.clone().ok_or_else(|| Error::argument("gone"));
            if let Some(landed) = self.lead.follow(py, &self.header, opened, self.offset, self.nbytes)? {
                return landed_object(py, landed, writable).map(Some);
            }
        }
        range_object(py, self.opened()?, self.offset + first, length, writable)
    }

    /// Fills a buffer with elements of the tensor, which begin at its byte `first` and have this shape and these
    /// strides in bytes. The buffer must have exactly their size.
    fn read_selection(
        &self,
        py: Python<'_>,
        first: u64,
        shape: Vec<u64>,
        strides: Vec<i64>,
        item_bytes: u64,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let opened = self.opened()?;
        let selection = Selection::new(first, &shape, &strides, item_bytes, self.nbytes)?;
        let mut out = WritableBuffer::of(out)?;
        let memory = out.memory(usize::try_from(selection.result_bytes)?)?;
        let plan = SlicePlan::new(selection);
        let raised = Raised::default();
        let mut keep_going = || raised.call(|py| -> PyResult<()> { py.check_signals() }).is_ok();
        let done =
            py.detach(|| slicing::fill(opened, self.offset, &plan, memory, MAX_READERS, &mut keep_going));
        raised.or(done)
    }
}
