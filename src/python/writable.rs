//! Memory of Python that this crate writes to: writable buffers, and new `bytes`. Unsafe island 3.
#![allow(unsafe_code)] // Island 3: the buffer protocol is made of raw pointers.

use std::fmt;
use std::mem::{MaybeUninit, forget};

use pyo3::exceptions::{PyBufferError, PyMemoryError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::os::memory::Uninit;
use crate::os::memory::parts::WritableMemory;

/// Number of bytes copied between two checks for Python's signals.
const COPY_CHUNK_BYTES: usize = 4 << 20;

/// Creates a `bytes` object that `fill(start, chunk)` fills, detached from the interpreter. Checks for Ctrl-C between
/// chunks.
pub fn new_bytes<E: Send + Into<PyErr>>(
    py: Python<'_>,
    len: usize,
    fill: impl Fn(usize, Uninit<'_>) -> Result<(), E> + Sync,
) -> PyResult<Bound<'_, PyBytes>> {
    let size = ffi::Py_ssize_t::try_from(len).map_err(|_| PyMemoryError::new_err("too large"))?;
    // SAFETY: a null source requests uninitialised bytes.
    let object = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), size) };
    // SAFETY: a new reference, or null with an exception set.
    let bytes = unsafe { Bound::from_owned_ptr_or_err(py, object) }?;
    let bytes = bytes.cast_into::<PyBytes>()?;
    // SAFETY: `bytes` is alive and a bytes object.
    let address = unsafe { ffi::PyBytes_AsString(bytes.as_ptr()) };
    // SAFETY: `len` bytes at `address` belong to the new object, which no other code knows yet.
    let memory = unsafe { std::slice::from_raw_parts_mut(address.cast::<MaybeUninit<u8>>(), len) };
    fill_in_chunks(py, Uninit::spare(memory), fill)?;
    Ok(bytes)
}

/// A caller's buffer to write to, of any element type. It is requested in the simplest form of the buffer protocol,
/// which NumPy also supports for types without a letter (bfloat16, datetime64).
pub struct WritableBuffer {
    request: Box<ffi::Py_buffer>,
}

impl WritableBuffer {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut request = Box::new(ffi::Py_buffer::new());
        // SAFETY: `object` is alive and `request` valid; `request` does not move, as some exporters require.
        let status =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *request, ffi::PyBUF_WRITABLE) };
        if status == 0 {
            return Ok(Self { request });
        }
        let why = PyErr::fetch(object.py());
        Err(PyTypeError::new_err(format!(
            "a writable, C-contiguous buffer is needed, neither read-only nor with gaps: {}",
            why.value(object.py())
        )))
    }

    pub fn len(&self) -> usize {
        self.request.len as usize
    }

    /// Returns whether the two share memory, so that only one may be borrowed at a time.
    pub fn overlaps(&self, other: &Self) -> bool {
        let start = |of: &Self| of.request.buf.addr();
        start(self) < start(other) + other.len() && start(other) < start(self) + self.len()
    }

    /// Returns its first `len` bytes.
    pub fn memory(&mut self, len: usize) -> PyResult<Uninit<'_>> {
        if self.len() < len {
            return Err(PyBufferError::new_err(format!(
                "the buffer has {} bytes, {len} are needed",
                self.len()
            )));
        }
        if len == 0 {
            return Ok(Uninit::default());
        }
        // SAFETY: the exporter promised this many contiguous, writable bytes until the release in `drop`. A caller that
        // uses the memory meanwhile races only with itself.
        let memory =
            unsafe { std::slice::from_raw_parts_mut(self.request.buf.cast::<MaybeUninit<u8>>(), len) };
        Ok(Uninit::spare(memory))
    }

    /// Returns all of its bytes.
    pub fn all(&mut self) -> PyResult<Uninit<'_>> {
        self.memory(self.len())
    }

    /// Fills its first `len` bytes as [`new_bytes`] does.
    pub fn fill<E: Send + Into<PyErr>>(
        &mut self,
        py: Python<'_>,
        len: usize,
        fill: impl Fn(usize, Uninit<'_>) -> Result<(), E> + Sync,
    ) -> PyResult<()> {
        fill_in_chunks(py, self.memory(len)?, fill)
    }
}

impl Drop for WritableBuffer {
    fn drop(&mut self) {
        // SAFETY: `PyObject_GetBuffer` returned it, and it is released once. Only `GivenMemory` moves it to another
        // thread (raw pointers are not Send), and that attaches: the interpreter's lock is held.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.request) };
    }
}

/// A caller's buffer that our threads write to. The last thread to drop it releases it.
pub struct GivenMemory {
    address: *mut u8,
    len: usize,
    /// `None` only during `drop`.
    buffer: Option<WritableBuffer>,
}

// SAFETY: only `drop` touches the buffer's request, with the interpreter's lock held.
unsafe impl Send for GivenMemory {}
// SAFETY: `&GivenMemory` gives out an address and a length.
unsafe impl Sync for GivenMemory {}

// SAFETY: the exporter promised this many contiguous, writable bytes until the release in `drop`. A caller that uses
// the memory meanwhile races only with itself.
unsafe impl WritableMemory for GivenMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.address
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl fmt::Debug for GivenMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GivenMemory").field("len", &self.len).finish_non_exhaustive()
    }
}

impl GivenMemory {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = WritableBuffer::of(object)?;
        Ok(Self { address: buffer.request.buf.cast(), len: buffer.len(), buffer: Some(buffer) })
    }
}

impl Drop for GivenMemory {
    fn drop(&mut self) {
        let mut buffer = self.buffer.take();
        Python::try_attach(|_| drop(buffer.take()));
        // The interpreter is gone, and its objects need no release.
        forget(buffer);
    }
}

/// Fills memory by `fill(start, chunk)`, detached from the interpreter. Checks for Ctrl-C between chunks.
pub fn fill_in_chunks<E: Send + Into<PyErr>>(
    py: Python<'_>,
    memory: Uninit<'_>,
    fill: impl Fn(usize, Uninit<'_>) -> Result<(), E> + Sync,
) -> PyResult<()> {
    if memory.len() <= COPY_CHUNK_BYTES {
        return py.detach(|| fill(0, memory)).map_err(Into::into);
    }
    for (index, chunk) in memory.chunks(COPY_CHUNK_BYTES).enumerate() {
        py.detach(|| fill(index * COPY_CHUNK_BYTES, chunk)).map_err(Into::into)?;
        py.check_signals()?;
    }
    Ok(())
}
