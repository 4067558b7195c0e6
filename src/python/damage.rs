//! A file that was cut, or failed, while Python code used arrays over it: an exception for the main thread.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use super::error::full_text;
use super::export;
use crate::error::Error;
use crate::mapped_file;

/// Whether the interpreter was asked for a call that it has not made yet: its list is short.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

/// Other files that an exception names.
const MOST_NOTES: usize = 5;

/// From now on such an exception is raised.
pub fn watch() {
    mapped_file::on_damage(ask_for_raise);
}

/// In the handler of a fault at an instruction that reads or writes an array.
extern "C" fn ask_for_raise() {
    // If the interpreter's list is full, the next damage asks again.
    if !IS_ASKED.swap(true, Ordering::AcqRel) && !export::ask_for_call(raise) {
        IS_ASKED.store(false, Ordering::Release);
    }
}

/// Called by the interpreter in its main thread, where it looks for signals, too.
extern "C" fn raise(_: *mut c_void) -> c_int {
    IS_ASKED.store(false, Ordering::Release);
    Python::attach(|py| match exception(py, mapped_file::untold_damage()) {
        Some(exception) => {
            exception.restore(py);
            -1
        }
        None => 0,
    })
}

/// One for all, as a second one would be raised in the handler of the first.
fn exception(py: Python<'_>, errors: Vec<Error>) -> Option<PyErr> {
    let mut errors = errors.into_iter();
    let exception = PyErr::from(errors.next()?);
    let mut notes: Vec<_> = errors.by_ref().take(MOST_NOTES).map(|other| full_text(&other)).collect();
    let left = errors.count();
    if left > 0 {
        notes.push(format!("and {left} more files").into());
    }
    for note in notes {
        // A help; without it it is the same exception.
        let _ = exception.value(py).call_method1("add_note", (note,));
    }
    Some(exception)
}
