//! `pagestream.TensorInfo`: what a header says of one tensor.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use super::error::text;
use crate::dtype::Dtype;
use crate::weights::header::{MAX_HEADER_BYTES, TensorEntry};

/// What a header says of one tensor.
///
/// Attributes:
///     name: The tensor's name.
///     dtype: The element type by its safetensors name, such as ``"BF16"``.
///     shape: The dimensions, in elements.
///     nbytes: The size in bytes.
///     path: The file that holds the tensor.
///     offset: Where the tensor's bytes begin in that file.
///
/// Example:
///     >>> from pagestream import open_checkpoint
///     >>> open_checkpoint("model.safetensors").info("bias").nbytes
///     12
#[pyclass(name = "TensorInfo", module = "pagestream", frozen, eq, hash)]
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct PyTensorInfo {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    nbytes: u64,
    path: PathBuf,
    offset: u64,
}

const FIELDS: [&str; 6] = ["name", "dtype", "shape", "nbytes", "path", "offset"];

/// Names of element types as Python's strings.
static WORDS: [PyOnceLock<Py<PyString>>; Dtype::ALL.len()] = [const { PyOnceLock::new() }; Dtype::ALL.len()];

/// Returns the name of an element type, always the same object.
pub fn dtype_word(py: Python<'_>, dtype: Dtype) -> &Bound<'_, PyString> {
    WORDS[dtype as usize].get_or_init(py, || PyString::intern(py, dtype.name()).unbind()).bind(py)
}

/// Adds the facts of the format that Python shares: the bits of each element type, and the header's limit.
pub fn add_constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let bits = PyDict::new(module.py());
    // Makes all words, too. A fork while another thread makes one later would leave the child waiting for a
    // thread that it does not have.
    for &dtype in Dtype::ALL {
        bits.set_item(dtype_word(module.py(), dtype), dtype.bits())?;
    }
    module.add("DTYPE_BITS", bits)?;
    module.add("MAX_HEADER_BYTES", MAX_HEADER_BYTES)
}

impl PyTensorInfo {
    /// `range` is the tensor's bytes in the file, as (offset, length).
    pub fn new(entry: &TensorEntry<'_>, path: &Path, (offset, nbytes): (u64, u64)) -> Self {
        let TensorEntry { name, dtype, shape, .. } = *entry;
        Self { name: name.into(), dtype, shape: shape.into(), nbytes, path: path.into(), offset }
    }
}

#[pymethods]
impl PyTensorInfo {
    #[classattr]
    fn __match_args__(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        PyTuple::new(py, FIELDS)
    }

    #[new]
    fn from_fields(
        name: String,
        dtype: &str,
        shape: Vec<u64>,
        nbytes: u64,
        path: PathBuf,
        offset: u64,
    ) -> PyResult<Self> {
        let known = Dtype::from_name(dtype);
        let dtype = known.ok_or_else(|| PyValueError::new_err(format!("unknown element type '{dtype}'")))?;
        Ok(Self { name, dtype, shape, nbytes, path, offset })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        dtype_word(py, self.dtype).clone()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.nbytes
    }

    #[getter]
    fn path(&self) -> OsString {
        text(&self.path)
    }

    #[getter]
    fn offset(&self) -> u64 {
        self.offset
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        Ok((py.get_type::<Self>(), self.fields(py)?))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let fields = self.fields(py)?;
        let each = FIELDS.iter().zip(fields).map(|(name, value)| Ok(format!("{name}={}", value.repr()?)));
        Ok(format!("TensorInfo({})", each.collect::<PyResult<Vec<_>>>()?.join(", ")))
    }
}

impl PyTensorInfo {
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (self.name(), self.dtype(py), self.shape(py)?, self.nbytes, self.path(), self.offset)
            .into_pyobject(py)
    }
}
