//! Memory for Python: views of mappings, batches, staging buffers. Unsafe island 3.
//!
//! What Python gets by the buffer protocol is an address, not a Rust reference. **The memory at that address stays
//! mapped until the object dies that exported it** (`view.obj`), and not only until the view is released:
//! `np.ndarray(buffer=…)` and `torch.frombuffer` release the view at once and keep the object.
//!
//! | object | exports | until it dies |
//! |---|---|---|
//! | [`PyExporter`] of a view | a range of a mapping | keeps the mapping |
//! | [`PyExporter`] of a batch | the batch's buffer | keeps it out of the pool |
//! | `MappedFile` | its mapping, through a `PyExporter` made for each request | keeps that mapping, too, unless a `memoryview` asked |
//! | `StagingBuffer` | its memory, through a `PyExporter` made for each request | counts those that are alive |
#![allow(unsafe_code)] // Island 3: the buffer protocol is made of raw pointers.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::fetch::buffers::Lease;
use crate::mapped_file::View;

/// The memory of one export.
pub struct Export {
    pub address: *const u8,
    pub len: usize,
    pub access: Access,
    /// The object whose death ends the export; `None` for the one that was asked.
    pub holder: Option<Py<PyExporter>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    Writable,
}

/// Who asks for a buffer, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// `memoryview`, and with it `np.frombuffer`: keeps its view. It asks for everything.
    KeepsView,
    /// `np.ndarray(buffer=…)`: releases the view at once, and keeps the object that it asked and not `view.obj`.
    /// NumPy alone asks for contiguous memory of either order.
    KeepsAskedObject,
    /// Keeps the view, or at least `view.obj`, as `torch.frombuffer` does.
    Other,
}

impl Requester {
    fn of(flags: c_int) -> Self {
        match flags {
            ffi::PyBUF_FULL_RO => Self::KeepsView,
            _ if flags & ffi::PyBUF_ANY_CONTIGUOUS == ffi::PyBUF_ANY_CONTIGUOUS => Self::KeepsAskedObject,
            _ => Self::Other,
        }
    }
}

/// Something whose memory Python may see.
pub trait Exportable: Send + Sync {
    /// Called for each `memoryview` or array that is made. The memory stays where it is as long as the export's
    /// holder lives, or without one as long as `self`.
    fn export(&self, py: Python<'_>, requester: Requester) -> PyResult<Export>;

    /// Whether memory goes when `self` does. Then it is let go without the interpreter's lock: to unmap can take
    /// long.
    fn is_last(&self) -> bool;
}

/// A range of a mapping.
impl Exportable for (View, Access) {
    fn export(&self, _py: Python<'_>, _requester: Requester) -> PyResult<Export> {
        self.0.check_damage()?;
        Ok(Export { address: self.0.as_ptr(), len: self.0.len(), access: self.1, holder: None })
    }

    fn is_last(&self) -> bool {
        self.0.is_last()
    }
}

/// A finished batch, writable by its user. Its buffer goes back to the pool with the last array on it.
impl Exportable for Arc<Lease> {
    fn export(&self, _py: Python<'_>, _requester: Requester) -> PyResult<Export> {
        Ok(Export { address: self.as_ptr(), len: Lease::len(self), access: Access::Writable, holder: None })
    }

    /// To go back to the pool takes no time.
    fn is_last(&self) -> bool {
        false
    }
}

/// The base of every class with the buffer protocol.
#[pyclass(name = "Exporter", module = "pagestream._native", subclass, frozen)]
pub struct PyExporter {
    /// Taken in `drop` alone.
    memory: Option<Box<dyn Exportable>>,
}

impl PyExporter {
    pub fn new(memory: impl Exportable + 'static) -> Self {
        Self { memory: Some(Box::new(memory)) }
    }
}

impl Drop for PyExporter {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take_if(|memory| memory.is_last()) {
            drop_detached(memory);
        }
    }
}

#[pymethods]
impl PyExporter {
    /// # Safety
    /// CPython's contract: `request` is valid.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        request: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let Some(memory) = &slf.get().memory else { return Err(PyBufferError::new_err("gone")) };
        let export = memory.export(slf.py(), Requester::of(flags))?;
        let read_only = c_int::from(export.access == Access::ReadOnly);
        let len = ffi::Py_ssize_t::try_from(export.len).map_err(|_| PyBufferError::new_err("too large"))?;
        let address = export.address.cast_mut().cast();
        let holder = export.holder.as_ref().map_or(slf.as_ptr(), Py::as_ptr);
        // SAFETY: `request` is valid (above), `holder` is alive, and gets a reference of its own in `request.obj`.
        // The memory stays until it dies (`Exportable::export`).
        let status = unsafe { ffi::PyBuffer_FillInfo(request, holder, address, len, read_only, flags) };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    /// Nothing is to be done: objects keep memory, not views. But for a class without this function `np.frombuffer`
    /// keeps the object that it asked and not its view.
    ///
    /// # Safety
    /// Trivially safe.
    #[allow(clippy::unused_self)]
    unsafe fn __releasebuffer__(&self, _request: *mut ffi::Py_buffer) {}
}

/// Makes an object for `memoryview` and `numpy.frombuffer` from a range of a mapping.
pub fn view_object(py: Python<'_>, view: View, access: Access) -> PyResult<Bound<'_, PyAny>> {
    Ok(Bound::new(py, PyExporter::new((view, access)))?.into_any())
}

/// Makes an object for `numpy.ndarray(buffer=…)` from a batch's buffer.
pub fn batch_object(py: Python<'_>, buffer: Lease) -> PyResult<Bound<'_, PyAny>> {
    Ok(Bound::new(py, PyExporter::new(Arc::new(buffer)))?.into_any())
}

/// `memoryview(object)`.
pub fn memory_view<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    Ok(PyMemoryView::from(object)?.into_any())
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

/// Asks the interpreter to call this in its main thread, where it looks for signals, too. Returns false if it cannot.
///
/// Also for the handler of a fault at an instruction that uses exported memory. CPython does the same in signal
/// handlers of its own: it takes a lock, but one that no thread holds while it uses such memory.
pub fn ask_for_call(call: extern "C" fn(*mut c_void) -> c_int) -> bool {
    // SAFETY: reads a flag, at any time.
    let is_alive = unsafe { ffi::Py_IsInitialized() } != 0;
    // SAFETY: may be called from any thread, and without the interpreter's lock, while the interpreter lives.
    is_alive && unsafe { ffi::Py_AddPendingCall(Some(call), std::ptr::null_mut()) } == 0
}
