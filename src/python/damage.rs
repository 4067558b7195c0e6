//! A file that was cut, or failed, while Python code used arrays over it: an exception for the main thread.
#![allow(unsafe_code)] // Island 3: called from a signal handler, and by the interpreter.

use std::ffi::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::mapped_file;

/// From now on such an exception is raised.
pub fn watch() {
    mapped_file::on_damage(ask_for_raise);
}

/// In the handler of a fault at an instruction that reads or writes an array. What CPython does here with its list
/// of calls to make is what it does in signal handlers of its own: it takes a lock, but one that no thread
/// holds while it touches an array.
extern "C" fn ask_for_raise() {
    // SAFETY: reads a flag, at any time.
    if unsafe { ffi::Py_IsInitialized() } != 0 {
        // SAFETY: may be called from any thread, and without the interpreter's lock, while the interpreter lives.
        unsafe { ffi::Py_AddPendingCall(Some(raise), std::ptr::null_mut()) };
    }
}

/// Called by the interpreter in its main thread, between two instructions.
extern "C" fn raise(_: *mut c_void) -> c_int {
    Python::attach(|py| match mapped_file::untold_damage() {
        Some(error) => {
            PyErr::from(error).restore(py);
            -1
        }
        None => 0,
    })
}
