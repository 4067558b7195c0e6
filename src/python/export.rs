//! Memory for Python: views of mappings, batches, staging buffers.
//! Unsafe island 3.
//!
//! What Python gets by the buffer protocol is an address, not a Rust reference. Each export owns a
//! keeper (an `Arc` of the mapping), which dies with the last array or memoryview that stands on it.
#![allow(unsafe_code)] // Island 3: the buffer protocol is made of raw pointers.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::fetch::buffers::Lease;
use crate::mapped_file::View;

/// An export: where the memory is and what keeps it.
pub struct Export {
    pub address: *const u8,
    pub len: usize,
    pub access: Access,
    pub keeper: Box<dyn Keeper>,
}

/// What keeps exported memory alive.
pub trait Keeper: Send {
    /// Whether the memory goes when this does. Then it is let go without the interpreter's lock: to unmap
    /// can take long.
    fn is_last(&self) -> bool;
}

impl Keeper for View {
    fn is_last(&self) -> bool {
        self.is_last()
    }
}

/// Drops a value that may take long to go, while others run.
pub fn drop_detached(value: impl Send) {
    let mut value = Some(value);
    // Without an interpreter, at its end, `value` simply goes with the closure.
    Python::try_attach(|py| {
        let value = value.take();
        py.detach(|| drop(value));
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    Writable,
}

impl Export {
    pub fn of_view(view: View, access: Access) -> PyResult<Self> {
        view.check()?;
        Ok(Self { address: view.as_ptr(), len: view.len(), access, keeper: Box::new(view) })
    }
}

/// Something whose memory Python may look at.
pub trait Source: Send + Sync {
    /// Called for each `memoryview` or array that is made.
    fn export(&self) -> PyResult<Export>;

    /// As [`Keeper::is_last`].
    fn is_last(&self) -> bool;
}

/// A range of a mapping.
impl Source for (View, Access) {
    fn export(&self) -> PyResult<Export> {
        Export::of_view(self.0.clone(), self.1)
    }

    fn is_last(&self) -> bool {
        self.0.is_last()
    }
}

/// A finished batch, writable by its user. Its buffer goes back to the pool with the last array on it.
impl Source for Arc<Lease> {
    fn export(&self) -> PyResult<Export> {
        let keeper = Box::new(self.clone());
        Ok(Export { address: self.as_ptr(), len: Lease::len(self), access: Access::Writable, keeper })
    }

    fn is_last(&self) -> bool {
        false
    }
}

impl Keeper for Arc<Lease> {
    /// To go back to the pool takes no time.
    fn is_last(&self) -> bool {
        false
    }
}

/// Asks the interpreter to call this in its main thread, where it looks for signals, too. False if it cannot.
///
/// Also from the handler of a fault at an instruction that uses exported memory. CPython does the same in signal
/// handlers of its own: it takes a lock, but one that no thread holds while it uses such memory.
pub fn ask_for_call(call: extern "C" fn(*mut c_void) -> c_int) -> bool {
    // SAFETY: reads a flag, at any time.
    let is_alive = unsafe { ffi::Py_IsInitialized() } != 0;
    // SAFETY: may be called from any thread, and without the interpreter's lock, while the interpreter lives.
    is_alive && unsafe { ffi::Py_AddPendingCall(Some(call), std::ptr::null_mut()) } == 0
}

/// The base of every class with the buffer protocol.
#[pyclass(name = "Exporter", module = "pagestream._native", subclass, frozen)]
pub struct PyExporter {
    /// Taken in `drop` alone.
    source: Option<Box<dyn Source>>,
}

impl PyExporter {
    pub fn new(source: impl Source + 'static) -> Self {
        Self { source: Some(Box::new(source)) }
    }
}

impl Drop for PyExporter {
    fn drop(&mut self) {
        if let Some(source) = self.source.take_if(|source| source.is_last()) {
            drop_detached(source);
        }
    }
}

#[pymethods]
impl PyExporter {
    /// # Safety
    /// CPython's contract: `request` is valid, and this is its one export.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        request: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let Some(source) = &slf.get().source else { return Err(PyBufferError::new_err("gone")) };
        let export = source.export()?;
        let read_only = c_int::from(export.access == Access::ReadOnly);
        let len = ffi::Py_ssize_t::try_from(export.len).map_err(|_| PyBufferError::new_err("too large"))?;
        let address = export.address.cast_mut().cast();
        // SAFETY: `request` is valid (above); the memory outlives the export, because the keeper is
        // dropped only in `__releasebuffer__`.
        let status = unsafe { ffi::PyBuffer_FillInfo(request, slf.as_ptr(), address, len, read_only, flags) };
        if status != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        // SAFETY: `request` is valid, and its `internal` is the exporter's own.
        unsafe { (*request).internal = Box::into_raw(Box::new(export.keeper)).cast::<c_void>() };
        Ok(())
    }

    /// # Safety
    /// CPython's contract: `request` was completed by `__getbuffer__`, and comes here once.
    #[allow(clippy::unused_self)]
    unsafe fn __releasebuffer__(&self, request: *mut ffi::Py_buffer) {
        // SAFETY: `request` is valid (above).
        let keeper = unsafe { (*request).internal }.cast::<Box<dyn Keeper>>();
        // SAFETY: it came from `Box::into_raw` in `__getbuffer__`, and is taken back only here.
        let keeper = unsafe { Box::from_raw(keeper) };
        if keeper.is_last() {
            drop_detached(keeper);
        }
    }
}

/// A range of a mapping as an object for `memoryview` and `numpy.frombuffer`.
pub fn view_object(py: Python<'_>, view: View, access: Access) -> PyResult<Bound<'_, PyAny>> {
    Ok(Bound::new(py, PyExporter::new((view, access)))?.into_any())
}

/// A batch's buffer as an object for `numpy.ndarray(buffer=…)`.
pub fn batch_object(py: Python<'_>, buffer: Lease) -> PyResult<Bound<'_, PyAny>> {
    Ok(Bound::new(py, PyExporter::new(Arc::new(buffer)))?.into_any())
}

/// `memoryview(object)`.
pub fn memory_view<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    Ok(PyMemoryView::from(object)?.into_any())
}
