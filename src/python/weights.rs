//! One safetensors file. `weights.py` and `safetensors/` stand on this.

use std::ffi::OsString;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use super::buffer::{self, Access, WritableBuffer};
use super::error::text;
use super::mapped_file::{audit_open, path_of};
use super::stored_tensor::PyStoredTensor;
use crate::mapped_file::RequestedMode;
use crate::weights::file::WeightFile;
use crate::weights::header::{Strictness, TensorEntry};

#[pyclass(name = "WeightFile", module = "pagestream._native", weakref, frozen)]
#[derive(Debug)]
pub struct PyWeightFile {
    weights: WeightFile,
}

impl Drop for PyWeightFile {
    fn drop(&mut self) {
        Python::try_attach(|py| py.detach(|| self.weights.file().close()));
    }
}

impl PyWeightFile {
    /// KeyError if there is no such tensor; the callers have words of their own for that.
    fn entry(&self, name: &Bound<'_, PyString>) -> PyResult<TensorEntry<'_>> {
        // A name with lone surrogates is no name in any header.
        let found = name.to_str().ok().and_then(|name| self.weights.header().tensor(name));
        found.ok_or_else(|| PyKeyError::new_err(name.clone().unbind()))
    }
}

#[pymethods]
impl PyWeightFile {
    #[new]
    fn new(py: Python<'_>, path: &[u8], mode: &str, strict: bool) -> PyResult<Self> {
        let path = path_of(path)?;
        let mode = RequestedMode::from_word(mode)?;
        let strictness = if strict { Strictness::Strict } else { Strictness::Upstream };
        audit_open(py, path, mode)?;
        Ok(Self { weights: py.detach(|| WeightFile::open(path, mode, strictness))? })
    }

    #[getter]
    fn path(&self) -> OsString {
        text(self.weights.file().path())
    }

    #[getter]
    fn absolute_path(&self) -> OsString {
        text(self.weights.file().absolute_path())
    }

    #[getter]
    fn mode(&self) -> &'static str {
        self.weights.file().facts().mode.word()
    }

    #[getter]
    fn reason(&self) -> Option<String> {
        self.weights.file().facts().reason
    }

    /// Fields of the header that the format does not have, as sentences.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.weights.header().warnings().to_vec()
    }

    fn __len__(&self) -> usize {
        self.weights.header().len()
    }

    fn __contains__(&self, name: &Bound<'_, PyString>) -> bool {
        self.entry(name).is_ok()
    }

    /// Names in order of names.
    fn keys(&self) -> Vec<&str> {
        self.weights.header().tensors().map(|entry| entry.name).collect()
    }

    /// Names in order of the data.
    fn offset_keys(&self) -> Vec<&str> {
        self.weights.header().tensors_by_offset().map(|entry| entry.name).collect()
    }

    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(pairs) = self.weights.header().metadata() else { return Ok(None) };
        let found = PyDict::new(py);
        for (key, value) in pairs {
            found.set_item(key, value)?;
        }
        Ok(Some(found))
    }

    /// (dtype, shape, bytes, offset in the file)
    fn info<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'_, PyString>,
    ) -> PyResult<(&'static str, Bound<'py, PyTuple>, u64, u64)> {
        let entry = self.entry(name)?;
        let (offset, length) = self.weights.byte_range(&entry);
        Ok((entry.dtype.name(), PyTuple::new(py, entry.shape)?, length, offset))
    }

    /// (dtype, shape, bytes, buffer over them); the buffer is None where there is no mapping. With
    /// `writable` it lies on pages that are copied when written.
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn tensor<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'_, PyString>,
        writable: bool,
    ) -> PyResult<(&'static str, Bound<'py, PyTuple>, u64, Option<Bound<'py, PyAny>>)> {
        let entry = self.entry(name)?;
        let (offset, length) = self.weights.byte_range(&entry);
        let opened = self.weights.file().opened()?;
        let (view, access) = if writable {
            (py.detach(|| opened.copy_on_write_view(offset, length))?, Access::Writable)
        } else {
            (opened.view(offset, length)?, Access::ReadOnly)
        };
        let buffer = view.map(|view| buffer::view_object(py, view, access)).transpose()?;
        Ok((entry.dtype.name(), PyTuple::new(py, entry.shape)?, length, buffer))
    }

    /// A tensor that can be read in parts, also after this is closed.
    fn stored(&self, name: &Bound<'_, PyString>) -> PyResult<PyStoredTensor> {
        Ok(PyStoredTensor::new(self.weights.stored(&self.entry(name)?)?))
    }

    /// Why there are no copy-on-write pages of this file; None if there are.
    fn copy_on_write_refusal(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let opened = self.weights.file().opened()?;
        Ok(py.detach(|| opened.copy_on_write_refusal()))
    }

    /// Copies a tensor's bytes to a buffer, which has room for just them.
    fn read_into(&self, py: Python<'_>, name: &Bound<'_, PyString>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let (offset, length) = self.weights.byte_range(&self.entry(name)?);
        let opened = self.weights.file().opened()?;
        WritableBuffer::of(out)?
            .fill(py, usize::try_from(length)?, |start, chunk| opened.read_into(offset + start as u64, chunk))
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.weights.file().check())?)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.weights.file().is_closed()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.weights.file().close());
    }
}
