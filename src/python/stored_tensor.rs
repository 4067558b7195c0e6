//! `StoredTensor`: a tensor of an open file. `Checkpoint.read` and the slices of `safetensors/` use it.

use std::ffi::OsString;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use super::error::Raised;
use super::export::{PyExporter, copied_object, copy_landed, drop_detached, landed_object, range_object};
use super::lead::FileLead;
use super::warming_shard::WarmTensor;
use super::writable::{WritableBuffer, fill_in_chunks};
use crate::error::{Error, Result};
use crate::mapped_file::Opened;
use crate::os::memory::Uninit;
use crate::slicing::{self, MAX_READERS, Selection};
use crate::weights::header::Header;

/// A selection of elements. Offsets and strides are in bytes, as in Python's `ByteSelection`.
#[derive(FromPyObject)]
pub struct ByteSelection {
    first: u64,
    shape: Vec<u64>,
    strides: Vec<i64>,
    item_bytes: u64,
}

impl ByteSelection {
    /// Returns the selection, and checks that it lies in a tensor of `tensor_bytes`.
    pub fn checked(&self, tensor_bytes: u64) -> Result<Selection> {
        Selection::new(self.first, &self.shape, &self.strides, self.item_bytes, tensor_bytes)
    }
}

/// A tensor, whose bytes lie inside the file. It keeps the file open, even after the `WeightFile` is closed.
#[pyclass(name = "StoredTensor", module = "pagestream._native", frozen)]
pub struct PyStoredTensor {
    #[pyo3(get)]
    pub name: Py<PyString>,
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

/// Unmaps detached from the interpreter, because this may be the last owner of the mapping.
impl Drop for PyStoredTensor {
    fn drop(&mut self) {
        drop_detached(self.opened.take());
    }
}

#[pymethods]
impl PyStoredTensor {
    /// Returns a buffer over the elements of a contiguous selection, or None if none is possible. With `owned` it is
    /// never the mapping, and with `writable` it is over copy-on-write pages.
    fn view<'py>(
        &self,
        py: Python<'py>,
        selected: ByteSelection,
        writable: bool,
        owned: bool,
    ) -> PyResult<Option<Bound<'py, PyExporter>>> {
        let opened = || self.opened.clone().ok_or_else(|| Error::argument("gone"));
        let selection = selected.checked(self.nbytes)?;
        let (bytes, is_run) = (selection.result_bytes, selection.is_run());
        let part = Some(&selection).filter(|_| !is_run || bytes < self.nbytes);
        let range = (self.offset, self.nbytes);
        if bytes > 0
            && let Some(landed) = self.lead.follow(py, &self.header, opened, range, part)?
        {
            return landed_object(py, landed, writable).map(Some);
        }
        let offset = self.offset + selected.first;
        if owned || !is_run || (part.is_some() && self.lead.is_to_be_read(&(offset..offset + bytes))) {
            return Ok(None);
        }
        let tensor = self.offset..self.offset + self.nbytes;
        range_object(py, self.opened()?, offset..offset + bytes, Some(&tensor), writable)
    }

    /// Returns memory with a copy of the elements of a selection.
    fn copied<'py>(&self, py: Python<'py>, selected: ByteSelection) -> PyResult<Bound<'py, PyExporter>> {
        let selection = selected.checked(self.nbytes)?;
        let offset = self.offset + selected.first;
        copied_object(py, selection.result_bytes, offset, selected.item_bytes, |memory| {
            self.read(py, selection, memory, 1)
        })
    }

    /// Copies the elements of a selection to a buffer of the same size. Up to `threads` threads copy a run of cached
    /// bytes.
    #[pyo3(signature = (selected, out, threads = 1))]
    fn read_selection(
        &self,
        py: Python<'_>,
        selected: ByteSelection,
        out: &Bound<'_, PyAny>,
        threads: usize,
    ) -> PyResult<()> {
        let selection = selected.checked(self.nbytes)?;
        let mut out = WritableBuffer::of(out)?;
        let memory = out.memory(usize::try_from(selection.result_bytes)?)?;
        self.read(py, selection, memory, threads)
    }
}

impl PyStoredTensor {
    fn opened(&self) -> PyResult<&Opened> {
        self.opened.as_deref().ok_or_else(|| PyValueError::new_err("gone"))
    }

    /// Copies the elements of a selection, from memory that `warm` has filled or from the file.
    fn read(
        &self,
        py: Python<'_>,
        selection: Selection,
        mut memory: Uninit<'_>,
        threads: usize,
    ) -> PyResult<()> {
        let opened = self.opened()?;
        let is_part = !selection.is_run() || selection.result_bytes < self.nbytes;
        let part = is_part.then_some(&selection);
        if let Some(WarmTensor::Landed(landed)) = self.lead.take_warm(py, self.offset, part)? {
            return fill_in_chunks(py, memory, |start, chunk| copy_landed(&landed, start, chunk));
        }
        let raised = Raised::default();
        let mut keep_going = || raised.call(|py| -> PyResult<()> { py.check_signals() }).is_ok();
        let run = selection.run().map(|run| self.offset + run.start..self.offset + run.end);
        let done = py.detach(|| {
            if let Some(range) = &run
                && threads > 1
                && slicing::is_cached_run(opened, range)
            {
                slicing::fill_run(opened, range.start, memory, threads)?;
                return opened.verify_with_server();
            }
            if let Some(range) = run
                && self.lead.read_in_sequence(opened, range, memory.reborrow(), &mut keep_going)?
            {
                return Ok(());
            }
            let plan = slicing::plan_for(opened, self.offset, selection, MAX_READERS);
            slicing::fill(opened, self.offset, &plan, memory, MAX_READERS, &mut keep_going)?;
            let is_empty = plan.selection.result_bytes == 0;
            if is_empty { Ok(()) } else { opened.verify_with_server() }
        });
        raised.or(done)
    }
}
