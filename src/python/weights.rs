//! `WeightFile`: a safetensors file. The Python packages `weights/` and `safetensors/` use it.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyDict, PyList, PyString, PyTuple};

use super::error::text;
use super::export::{self, PyExporter};
use super::files::{FileSystemFields, audit_open, file_system_of, path_of};
use super::idle::IdleKey;
use super::lead::FileLead;
use super::names::list_of_names;
use super::stored_tensor::PyStoredTensor;
use super::writable::{self, WritableBuffer};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::mapped_file::{
    LARGE_TENSOR_BYTES, MappedFile, Mode, RequestedMode, can_copy_from_mappings, page_cache,
};
use crate::os::memory::Uninit;
use crate::weights::file::{self, WeightFile};
use crate::weights::header::{MAX_HEADER_BYTES, TensorEntry};

/// Names of element types as Python strings.
static WORDS: [PyOnceLock<Py<PyString>>; Dtype::ALL.len()] = [const { PyOnceLock::new() }; Dtype::ALL.len()];

/// Returns the name of an element type, always the same object.
pub fn dtype_word(py: Python<'_>, dtype: Dtype) -> &Bound<'_, PyString> {
    WORDS[dtype as usize].get_or_init(py, || PyString::intern(py, dtype.name()).unbind()).bind(py)
}

/// Adds format facts that Python shares: the bits of each element type, and the maximum length of a header.
pub fn add_constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // This also creates all words. If a thread created one later during a fork, the child would wait for a thread that
    // it does not have.
    let bits = Dtype::ALL.iter().map(|&dtype| (dtype_word(module.py(), dtype), dtype.bits()));
    module.add("DTYPE_BITS", bits.into_py_dict(module.py())?)?;
    module.add("MAX_HEADER_BYTES", MAX_HEADER_BYTES)
}

/// The entry of a tensor in a header.
#[pyclass(name = "TensorFacts", module = "pagestream._native", frozen, get_all)]
pub struct PyTensorFacts {
    dtype: Py<PyString>,
    shape: Py<PyTuple>,
    nbytes: u64,
    /// The offset of the tensor's first byte in the file.
    offset: u64,
}

impl PyTensorFacts {
    pub fn of(py: Python<'_>, entry: &TensorEntry<'_>) -> PyResult<Self> {
        Ok(Self {
            dtype: dtype_word(py, entry.dtype).clone().unbind(),
            shape: PyTuple::new(py, entry.shape)?.unbind(),
            nbytes: entry.len,
            offset: entry.offset,
        })
    }
}

#[pyclass(name = "WeightFile", module = "pagestream._native", weakref, frozen)]
#[derive(Debug)]
pub struct PyWeightFile {
    weights: WeightFile,
    lead: Arc<FileLead>,
    /// The key by which a closed file is kept for a moment. `None` for a file of a checkpoint, and for a file opened by
    /// its descriptor.
    key: Option<IdleKey>,
    /// The results of `buffer`: all tensors of a file share one object per protection.
    buffers: Mutex<Buffers>,
}

/// By protection: read-only, writable.
type Buffers = [Option<Py<PyExporter>>; 2];

impl Drop for PyWeightFile {
    fn drop(&mut self) {
        // A checkpoint closes its own files.
        if self.weights.is_last() {
            Python::try_attach(|py| py.detach(|| self.let_go()));
        }
    }
}

impl PyWeightFile {
    /// Creates the object for one of a checkpoint's files.
    pub fn of(weights: WeightFile, lead: Arc<FileLead>) -> Self {
        Self { weights, lead, key: None, buffers: Mutex::default() }
    }

    /// Closes the file. If it is being read ahead, it is kept for a moment: some programs open a file for each tensor,
    /// and FUSE drops a file from the page cache whenever it is opened.
    fn let_go(&self) {
        if let Some(key) = &self.key {
            return key.let_go(&self.weights, &self.lead);
        }
        // If a checkpoint's file is opened again, its lead serves it.
        if Arc::strong_count(&self.lead) == 1 {
            self.lead.close();
        }
        self.weights.file.close();
    }

    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the whole file as a buffer, or `None` if there is no mapping. With `writable` the buffer is over
    /// copy-on-write pages.
    fn buffer<'py>(&self, py: Python<'py>, writable: bool) -> PyResult<Option<Bound<'py, PyExporter>>> {
        let opened = self.weights.file.opened()?;
        export::ask_in_time(py, &opened);
        let known = self.buffers()[usize::from(writable)].as_ref().map(|buffer| buffer.bind(py).clone());
        if let Some(known) = known {
            opened.check_damage()?;
            return Ok(Some(known));
        }
        let Some(buffer) = export::range_object(py, &opened, 0..opened.size(), None, writable)? else {
            return Ok(None);
        };
        let mut buffers = self.buffers();
        // After a concurrent close, only users of the memory may keep the mapping.
        if !self.weights.file.is_closed() {
            buffers[usize::from(writable)] = Some(buffer.clone().unbind());
        }
        Ok(Some(buffer))
    }

    /// Returns the whole file as a buffer for a user of one tensor, or `None` if there is no mapping.
    fn mapped<'py>(
        &self,
        py: Python<'py>,
        entry: &TensorEntry<'_>,
        writable: bool,
    ) -> PyResult<Option<Bound<'py, PyExporter>>> {
        if entry.len < LARGE_TENSOR_BYTES {
            return self.buffer(py, writable);
        }
        let opened = self.weights.file.opened()?;
        let tensor = entry.offset..entry.offset + entry.len;
        export::range_object(py, &opened, 0..opened.size(), Some(&tensor), writable)
    }

    /// Returns memory with a tensor's bytes, and the offset at which they begin. It is the tensor's own if it was read
    /// ahead; otherwise the mapping; or a copy, with `owned` or without a mapping.
    fn memory<'py>(
        &self,
        py: Python<'py>,
        entry: &TensorEntry<'_>,
        writable: bool,
        owned: bool,
    ) -> PyResult<(Bound<'py, PyExporter>, u64)> {
        let opened = || self.weights.file.opened();
        let range = (entry.offset, entry.len);
        if let Some(landed) = self.lead.follow(py, &self.weights.header, opened, range, None)? {
            return Ok((export::landed_object(py, landed, writable)?, 0));
        }
        if !owned && let Some(mapped) = self.mapped(py, entry, writable)? {
            return Ok((mapped, entry.offset));
        }
        let item_bytes = entry.dtype.size_bytes().unwrap_or(1) as u64;
        let copy = export::copied_object(py, entry.len, entry.offset, item_bytes, |memory| {
            self.fill(py, entry, memory)
        })?;
        Ok((copy, 0))
    }

    /// Copies a tensor's bytes.
    fn fill(&self, py: Python<'_>, entry: &TensorEntry<'_>, memory: Uninit<'_>) -> PyResult<()> {
        let &TensorEntry { offset, len, .. } = entry;
        let opened = self.weights.file.opened()?;
        opened.check_range(offset, len)?;
        let len = usize::try_from(len)?;
        writable::fill_in_chunks(py, memory, |start, chunk| {
            let end = start + chunk.len();
            opened.copy_into(offset + start as u64, chunk, can_copy_from_mappings())?;
            // One check after the last chunk: the kernel's attributes may be older than the first chunk.
            if end == len { opened.verify_with_server() } else { Ok(()) }
        })
    }

    fn entry(&self, name: &Bound<'_, PyString>) -> PyResult<TensorEntry<'_>> {
        // No name in a header has lone surrogates.
        let found = name.to_str().ok().and_then(|name| self.weights.header.tensor(name));
        found.ok_or_else(|| {
            let detail = format!("File does not contain tensor {name}");
            Error::Safetensors { path: self.weights.file.path().into(), detail }.into()
        })
    }
}

/// Parses the header of a file in memory, and returns the tensors in order of the data. `head` contains at least the
/// header.
#[pyfunction]
pub fn parse_weights(
    py: Python<'_>,
    head: &[u8],
    size: u64,
    strict: bool,
) -> PyResult<Vec<(String, PyTensorFacts)>> {
    let header = py.detach(|| file::parse_head(head, size, strict.into()))?;
    let tensors = header.tensors_by_offset();
    tensors.map(|it| Ok((it.name.into(), PyTensorFacts::of(py, &it)?))).collect()
}

#[pymethods]
impl PyWeightFile {
    /// Opens a file by its path. With a descriptor it opens the descriptor's file, and errors show `path`. The caller
    /// keeps the descriptor.
    #[new]
    #[pyo3(signature = (path, mode, strict, ahead_bytes, descriptor = None))]
    fn new(
        py: Python<'_>,
        path: &[u8],
        mode: &str,
        strict: bool,
        ahead_bytes: Option<u64>,
        descriptor: Option<RawFd>,
    ) -> PyResult<Self> {
        let path = path_of(path)?;
        let mode = RequestedMode::from_word(mode)?;
        audit_open(py, path, mode)?;
        let strictness = strict.into();
        if let Some(descriptor) = descriptor {
            let file = py.detach(|| {
                WeightFile::of(MappedFile::from_descriptor(descriptor, path, mode)?, strictness)
            })?;
            return Ok(Self::of(file, Arc::new(FileLead::new(ahead_bytes, None))));
        }
        let key = IdleKey::new(path, mode, strictness, ahead_bytes);
        let (weights, lead) = py.detach(|| key.open())?;
        Ok(Self { weights, lead, key: Some(key), buffers: Mutex::default() })
    }

    #[getter]
    fn path(&self) -> OsString {
        text(self.weights.file.path())
    }

    #[getter]
    fn mode(&self) -> &'static str {
        self.weights.file.facts().mode.word()
    }

    #[getter]
    fn reason(&self) -> Option<String> {
        self.weights.file.facts().reason
    }

    #[getter]
    fn file_system(&self, py: Python<'_>) -> PyResult<FileSystemFields> {
        file_system_of(py, &self.weights.file)
    }

    /// Whether positioned reads use the page cache; None if that is unknown.
    #[getter]
    fn reads_from_cache(&self) -> PyResult<Option<bool>> {
        let opened = self.weights.file.opened()?;
        let is_as_asked = opened.facts.mode != Mode::Shared && opened.facts.reason.is_none();
        Ok((!is_as_asked).then(|| opened.reads_from_cache()))
    }

    /// Returns whether some of the file is in the page cache.
    fn holds_pages(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(py.detach(|| self.weights.file.opened().map(|opened| page_cache::holds_pages(&opened)))?)
    }

    /// Returns why direct reads of the file are impossible; None if no reason is known. Opens the file again, which on
    /// FUSE drops its pages.
    fn direct_refusal(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(py.detach(|| self.weights.file.opened().map(|opened| opened.direct_refusal()))?)
    }

    /// The offset of the tensors' data in the file, in bytes.
    #[getter]
    fn data_start(&self) -> u64 {
        self.weights.header.data_start
    }

    fn __len__(&self) -> usize {
        self.weights.header.len()
    }

    /// Returns the names, sorted.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        list_of_names(py, self.weights.header.tensors().map(|entry| entry.name))
    }

    /// Returns the names in order of the data.
    fn offset_keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        list_of_names(py, self.weights.header.tensors_by_offset().map(|entry| entry.name))
    }

    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.weights.header.metadata().map(|pairs| pairs.into_py_dict(py)).transpose()
    }

    fn info(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> PyResult<PyTensorFacts> {
        PyTensorFacts::of(py, &self.entry(name)?)
    }

    /// Returns `make(shape, types[dtype], buffer, offset)`, for example `numpy.ndarray(…)`. With `owned` the buffer is
    /// never the mapping. Returns None if `types` lacks the type, or if the tensor is misaligned.
    fn array<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'_, PyString>,
        make: &Bound<'py, PyAny>,
        types: &Bound<'py, PyDict>,
        writable: bool,
        owned: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let entry = self.entry(name)?;
        if entry.dtype.size_bytes().is_none_or(|size_bytes| !entry.offset.is_multiple_of(size_bytes as u64)) {
            return Ok(None);
        }
        let Some(dtype) = types.get_item(dtype_word(py, entry.dtype))? else { return Ok(None) };
        let shape = PyTuple::new(py, entry.shape)?;
        let (buffer, offset) = self.memory(py, &entry, writable, owned)?;
        make.call1((shape, dtype, buffer, offset)).map(Some)
    }

    /// Returns a buffer that holds a tensor's bytes, and the offset at which they begin. With `owned`, and if there is
    /// no mapping, they are a copy.
    fn memory_of<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'_, PyString>,
        writable: bool,
        owned: bool,
    ) -> PyResult<(Bound<'py, PyExporter>, u64)> {
        self.memory(py, &self.entry(name)?, writable, owned)
    }

    /// Copies a tensor's bytes to a buffer of exactly their size.
    fn read_into(&self, py: Python<'_>, name: &Bound<'_, PyString>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let entry = self.entry(name)?;
        self.fill(py, &entry, WritableBuffer::of(out)?.memory(usize::try_from(entry.len)?)?)
    }

    /// Returns a tensor that can be read in parts, even after this file is closed.
    fn stored(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> PyResult<PyStoredTensor> {
        let PyTensorFacts { dtype, shape, nbytes, offset } = self.info(py, name)?;
        let opened = Some(self.weights.file.opened()?);
        let (header, lead) = (self.weights.header.clone(), self.lead.clone());
        let (name, path) = (name.clone().unbind(), self.path());
        Ok(PyStoredTensor { name, dtype, shape, nbytes, path, offset, opened, header, lead })
    }

    /// Returns the file with its own copy-on-write pages, so that writes do not show in other tensors.
    fn with_own_pages(&self) -> PyResult<Self> {
        let WeightFile { file, header } = &self.weights;
        let weights = WeightFile { file: Arc::new(file.with_own_pages()?), header: header.clone() };
        Ok(Self::of(weights, self.lead.clone()))
    }

    /// Returns why this file has no copy-on-write pages; None if it has.
    fn copy_on_write_refusal(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let opened = self.weights.file.opened()?;
        Ok(py.detach(|| opened.copy_on_write_refusal()))
    }

    /// Returns why the pages of read-only arrays are not writable; None if they are.
    fn read_only_pages_reason(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let opened = self.weights.file.opened()?;
        Ok(py.detach(|| opened.read_only_pages_reason()))
    }

    /// Checks with the kernel's attributes that the file has not changed since it was opened.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.weights.file.opened()?.verify_as_known())?)
    }

    /// Waits until storage has received requests for all requested tensors. If there is a lead, it also asks the server
    /// whether the file has changed.
    fn finish_lead(&self, py: Python<'_>) -> PyResult<()> {
        if self.lead.finish(py)? {
            let verified = py.detach(|| self.weights.file.opened()?.verify_with_server());
            // If the server does not answer, all bytes may have arrived before.
            verified.or_else(|error| match error {
                Error::System { .. } | Error::Closed { .. } => Ok(()),
                error => Err(error),
            })?;
        }
        Ok(())
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.weights.file.check())?)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.weights.file.is_closed()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.let_go());
        let let_go = std::mem::take(&mut *self.buffers());
        drop(let_go);
    }
}
