//! Exports memory to Python: views of mappings, batches, staging buffers. Unsafe island 3.
//!
//! The buffer protocol gives Python an address, not a Rust reference. **The memory at that address stays mapped until
//! the exporting object (`view.obj`) dies**, and not only until the view is released: `np.ndarray(buffer=…)` and
//! `torch.frombuffer` release the view at once and keep the object.
//!
//! | object | exports | until it dies |
//! |---|---|---|
//! | [`PyExporter`] of a view | a range of a mapping | keeps the mapping |
//! | [`PyExporter`] of a view of a large tensor | a range of its mapping | keeps the mapping, and the program's writes to the tensor |
//! | [`PyExporter`] of a tensor that was read | its memory, which its neighbours may share | keeps that memory |
//! | [`PyExporter`] of a copy of a tensor | its memory | keeps that memory |
//! | [`PyExporter`] of a batch | the batch's buffer | keeps it out of the pool |
//! | `MappedFile` | its mapping, through a `PyExporter` made for each request | also keeps that mapping, unless a `memoryview` requested it |
//! | `StagingBuffer` | its memory, through a `PyExporter` made for each request | counts the live exporters |
#![allow(unsafe_code)] // Island 3: the buffer protocol is made of raw pointers.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::{Error, Result};
use crate::fetch::buffers::Lease;
use crate::mapped_file::{Opened, TensorView, View};
use crate::os::memory::{Placed, Uninit};
use crate::streaming::engine::Landed;

/// The memory of one export.
pub struct Export {
    pub address: *const u8,
    pub len: usize,
    pub access: Access,
    /// The object whose death ends the export, or `None` for the object that received the request.
    pub holder: Option<Py<PyExporter>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    Writable,
}

/// The kind of buffer consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// `memoryview`, and therefore also `np.frombuffer`: keeps its view. It requests `PyBUF_FULL_RO`.
    KeepsView,
    /// `np.ndarray(buffer=…)`: releases the view at once, and keeps the object that received the request, not
    /// `view.obj`. Only NumPy requests `PyBUF_ANY_CONTIGUOUS`.
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

/// An owner of memory that Python may access.
pub trait Exportable: Send + Sync {
    /// Returns the memory for a new `memoryview` or array. It stays in place as long as the export's holder lives, or,
    /// without a holder, as long as `self`.
    fn export(&self, py: Python<'_>, requester: Requester) -> PyResult<Export>;

    /// Returns whether dropping `self` frees memory. It is then dropped without the interpreter's lock, because
    /// unmapping can take long.
    fn is_last(&self) -> bool;

    /// Returns whether the memory is a copy that nothing else uses.
    fn is_copy(&self) -> bool {
        false
    }
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

/// A range of a mapping, for a user of a large tensor.
impl Exportable for (TensorView, Access) {
    fn export(&self, _py: Python<'_>, _requester: Requester) -> PyResult<Export> {
        let view = self.0.view();
        view.check_damage()?;
        Ok(Export { address: view.as_ptr(), len: view.len(), access: self.1, holder: None })
    }

    /// Dropping it may have to give written pages back.
    fn is_last(&self) -> bool {
        true
    }
}

/// A finished batch, writable by its user. Its buffer returns to the pool with the last array over it.
impl Exportable for Arc<Lease> {
    fn export(&self, _py: Python<'_>, _requester: Requester) -> PyResult<Export> {
        Ok(Export { address: self.as_ptr(), len: Lease::len(self), access: Access::Writable, holder: None })
    }

    /// Returning it to the pool is instant.
    fn is_last(&self) -> bool {
        false
    }
}

/// A tensor that was read. Its neighbours may share the memory.
impl Exportable for (Landed, Access) {
    fn export(&self, _py: Python<'_>, _requester: Requester) -> PyResult<Export> {
        let Landed { memory, place } = &self.0;
        let address = memory.as_ptr().wrapping_add(place.offset).cast_const();
        Ok(Export { address, len: place.len, access: self.1, holder: None })
    }

    fn is_last(&self) -> bool {
        Arc::strong_count(&self.0.memory) == 1
    }
}

/// A copy of a tensor.
impl Exportable for Placed {
    fn export(&self, _py: Python<'_>, _requester: Requester) -> PyResult<Export> {
        Ok(Export { address: self.as_ptr(), len: self.len(), access: Access::Writable, holder: None })
    }

    fn is_last(&self) -> bool {
        self.is_large()
    }

    fn is_copy(&self) -> bool {
        true
    }
}

/// The base of every class with the buffer protocol.
#[pyclass(name = "Exporter", module = "pagestream._native", subclass, frozen)]
pub struct PyExporter {
    /// Taken only in `drop`.
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
    /// Whether the memory is a copy of a file's bytes that nothing else uses.
    #[getter]
    fn is_copy(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_copy())
    }

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
        // SAFETY: `request` is valid (above), `holder` is alive, and `request.obj` gets a reference of its own. The
        // memory stays until the holder dies (`Exportable::export`).
        let status = unsafe { ffi::PyBuffer_FillInfo(request, holder, address, len, read_only, flags) };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    /// Does nothing, because objects keep the memory, and views do not. It exists because `np.frombuffer` would
    /// otherwise keep the object that received the request instead of its view.
    ///
    /// # Safety
    /// Trivially safe.
    #[allow(clippy::unused_self)]
    unsafe fn __releasebuffer__(&self, _request: *mut ffi::Py_buffer) {}
}

/// Creates an object for `memoryview` and `numpy.frombuffer` from a range of a mapping.
pub fn view_object(py: Python<'_>, view: View, access: Access) -> PyResult<Bound<'_, PyExporter>> {
    Bound::new(py, PyExporter::new((view, access)))
}

/// Makes the kernel ask the server for a file's size before views are handed out, unless it did so a moment ago.
pub fn ask_in_time(py: Python<'_>, opened: &Opened) {
    if opened.is_time_to_ask() {
        py.detach(|| opened.ask_server());
    }
}

/// Creates such an object from a range of a file, or with `writable` from copy-on-write pages. `None` if there is no
/// such mapping. For a user of a large tensor, `tensor` is the tensor's range.
pub fn range_object<'py>(
    py: Python<'py>,
    opened: &Opened,
    range: Range<u64>,
    tensor: Option<&Range<u64>>,
    writable: bool,
) -> PyResult<Option<Bound<'py, PyExporter>>> {
    ask_in_time(py, opened);
    let access = if writable { Access::Writable } else { Access::ReadOnly };
    let (offset, length) = (range.start, range.end - range.start);
    let view = || match access {
        Access::Writable => opened.copy_on_write_view(offset, length),
        Access::ReadOnly => opened.array_view(offset, length),
    };
    let view = if opened.has_copy_on_write() { view() } else { py.detach(view) }?;
    let Some(view) = view else { return Ok(None) };
    match tensor.and_then(|tensor| opened.tensor_view(&view, tensor, writable)) {
        Some(view) => Bound::new(py, PyExporter::new((view, access))).map(Some),
        None => view_object(py, view, access).map(Some),
    }
}

/// Creates such an object from a tensor that was read.
pub fn landed_object(py: Python<'_>, landed: Landed, writable: bool) -> PyResult<Bound<'_, PyExporter>> {
    let access = if writable { Access::Writable } else { Access::ReadOnly };
    Bound::new(py, PyExporter::new((landed, access)))
}

/// Creates such an object from a copy of `len` bytes, which begin at `offset` in their file. Its address is that of a
/// view of them, modulo a cache line, if elements of `item_bytes` are aligned there.
pub fn copied_object(
    py: Python<'_>,
    len: u64,
    offset: u64,
    item_bytes: u64,
    fill: impl FnOnce(Uninit<'_>) -> PyResult<()>,
) -> PyResult<Bound<'_, PyExporter>> {
    let aligned = offset - offset.checked_rem(item_bytes).unwrap_or(0);
    let copy = Placed::filled(usize::try_from(len)?, aligned, fill)?;
    Bound::new(py, PyExporter::new(copy))
}

/// Copies bytes of a tensor that was read, beginning at `start`. They must lie inside the tensor.
pub fn copy_landed(landed: &Landed, start: usize, mut out: Uninit<'_>) -> Result<()> {
    let Landed { memory, place } = landed;
    let is_inside = start.checked_add(out.len()).is_some_and(|end| end <= place.len);
    let ends_inside = place.offset.checked_add(place.len).is_some_and(|end| end <= memory.len());
    if !(is_inside && ends_inside && memory.is_private()) {
        return Err(Error::argument("these bytes do not lie in memory that was read"));
    }
    let source = memory.as_ptr().wrapping_add(place.offset + start);
    // SAFETY: the two checks above ensure that this many bytes lie in the block. `is_private` ensures that they are
    // initialised and that no code outside this crate writes to them, and the stream has finished writing them. `out`
    // borrows other memory.
    unsafe { std::ptr::copy_nonoverlapping(source.cast_const(), out.as_mut_ptr(), out.len()) };
    Ok(())
}

/// Drops a value without holding the interpreter lock.
pub fn drop_detached(value: impl Send) {
    let mut value = Some(value);
    // If the interpreter is finalizing or gone, `value` is dropped at the end of this function.
    Python::try_attach(|py| {
        let value = value.take();
        py.detach(|| drop(value));
    });
}

/// Asks the interpreter to call `call` in its main thread, where it also checks for signals, with the [`argument`] of
/// `number`. Returns false if it cannot.
///
/// The SIGBUS handler may call this for a fault at an instruction that uses exported memory, as CPython does in its own
/// signal handlers. CPython takes a lock, but no thread holds it while it uses such memory.
pub fn ask_for_call(call: extern "C" fn(*mut c_void) -> c_int, number: u64) -> bool {
    // SAFETY: the call only reads a flag, and is allowed at any time.
    let is_alive = unsafe { ffi::Py_IsInitialized() } != 0;
    // SAFETY: any thread may make the call, without the interpreter's lock, while the interpreter lives.
    is_alive && unsafe { ffi::Py_AddPendingCall(Some(call), argument(number)) } == 0
}

/// Returns a number as the argument of a call. It is not an address.
#[allow(clippy::cast_possible_truncation)] // Fork counts fit.
pub fn argument(number: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(number as usize)
}
