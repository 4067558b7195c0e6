//! `StoredTensor`: one tensor of an open file. `Checkpoint.read` and the slices of `safetensors/` use it.

use std::ffi::OsString;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::error::text;
use super::export::{self, Access, drop_detached};
use super::writable::WritableBuffer;
use crate::slicing::Selection;
use crate::weights::tensor::StoredTensor;

#[pyclass(name = "StoredTensor", module = "pagestream._native", frozen)]
pub struct PyStoredTensor {
    /// `None` only during `drop`.
    tensor: Option<StoredTensor>,
}

/// Unmaps detached from the interpreter: this may be the last owner of the mapping.
impl Drop for PyStoredTensor {
    fn drop(&mut self) {
        drop_detached(self.tensor.take());
    }
}

impl PyStoredTensor {
    pub fn new(tensor: StoredTensor) -> Self {
        Self { tensor: Some(tensor) }
    }

    fn tensor(&self) -> PyResult<&StoredTensor> {
        self.tensor.as_ref().ok_or_else(|| pyo3::exceptions::PyValueError::new_err("gone"))
    }
}

#[pymethods]
impl PyStoredTensor {
    #[getter]
    fn dtype(&self) -> PyResult<&'static str> {
        Ok(self.tensor()?.dtype.name())
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.tensor()?.shape)
    }

    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.tensor()?.len)
    }

    #[getter]
    fn path(&self) -> PyResult<OsString> {
        Ok(text(self.tensor()?.path()))
    }

    /// Returns a buffer over `length` bytes of the tensor; None where there is no mapping. With `writable` the buffer
    /// is over copy-on-write pages.
    fn view<'py>(
        &self,
        py: Python<'py>,
        first: u64,
        length: u64,
        writable: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let tensor = self.tensor()?;
        let (view, access) = if writable {
            (py.detach(|| tensor.copy_on_write_view(first, length))?, Access::Writable)
        } else {
            (tensor.view(first, length)?, Access::ReadOnly)
        };
        view.map(|view| export::view_object(py, view, access)).transpose()
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
        let tensor = self.tensor()?;
        let selection = Selection::new(first, &shape, &strides, item_bytes, tensor.len)?;
        let mut out = WritableBuffer::of(out)?;
        let memory = out.memory(usize::try_from(selection.result_bytes)?)?;
        let mut raised: PyResult<()> = Ok(());
        let done = py.detach(|| {
            tensor.read(selection, memory, &mut || {
                raised = Python::attach(|py| {
                    py.check_signals()?;
                    Ok(())
                });
                raised.is_ok()
            })
        });
        raised?;
        Ok(done?)
    }
}
