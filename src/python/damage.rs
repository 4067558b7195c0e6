//! A file that was cut, or failed, while Python code used arrays over it: an exception for the main thread.
//!
//! ```text
//!  fault ──► ask ──► raise, in the main thread ──► a caller gets it
//!             ▲                                 └► nobody does: sys.unraisablehook
//!             └────────────────────────────────────┘
//! ```
//!
//! The interpreter raises it wherever its main thread happens to be. In a finaliser, a weakref's callback or a fork
//! hook nobody can catch it: the interpreter hands it to `sys.unraisablehook` and goes on. So that hook is wrapped,
//! from the first damage on, and what it gets of ours is raised once more.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;

use super::error::full_text;
use super::export;
use crate::error::Error;
use crate::mapped_file;
use crate::os::fault;
use crate::os::process::fork;

/// Forks before the process that asked the interpreter for a call which it has not made yet, plus 1; else 0. The
/// interpreter's list is short, so it is asked once. A child asks anew: its parent's call may not be in its list.
static ASKED_BY: AtomicU64 = AtomicU64::new(0);

/// Other files that an exception names.
const MAX_NOTES: usize = 5;
/// Exceptions that are remembered after they were raised.
const MAX_RAISED: usize = 8;
/// Upper bound of the exceptions that are followed from one to its context.
const MAX_CONTEXTS: usize = 32;

/// Used by threads that hold the interpreter's lock.
static NOTICES: Mutex<Notices> = Mutex::new(Notices { raised: Vec::new(), again: Vec::new() });

struct Notices {
    /// Addresses of the last exceptions, and what they told.
    raised: Vec<(usize, Vec<Error>)>,
    /// What nobody got, to be raised again.
    again: Vec<Error>,
}

impl Notices {
    /// Notes what the exception at an address tells.
    fn note(&mut self, address: usize, errors: Vec<Error>) {
        if self.raised.len() == MAX_RAISED {
            self.raised.remove(0);
        }
        self.raised.push((address, errors));
    }

    /// Takes what the exception at an address told, if it is one of ours.
    fn take(&mut self, address: usize) -> Vec<Error> {
        let place = self.raised.iter().position(|(of, _)| *of == address);
        place.map(|place| self.raised.remove(place).1).unwrap_or_default()
    }
}

/// Locks them, for a moment in which no code of Python's runs: it could be interrupted by [`raise`].
fn notices() -> MutexGuard<'static, Notices> {
    NOTICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on such an exception is raised.
pub fn watch() {
    mapped_file::on_damage(ask_for_raise);
}

/// In the handler of a fault at an instruction that reads or writes an array, or with the interpreter's lock.
extern "C" fn ask_for_raise() {
    let asker = fork::generation() + 1;
    if ASKED_BY.swap(asker, Ordering::AcqRel) == asker {
        return;
    }
    if export::ask_for_call(raise) {
        // It may be waiting for another thread: for its end, or for what it puts into a queue.
        fault::wake_first_thread();
    } else {
        // The interpreter's list is full. The next damage asks again.
        ASKED_BY.store(0, Ordering::Release);
    }
}

/// Called by the interpreter in its main thread, where it looks for signals, too.
extern "C" fn raise(_: *mut c_void) -> c_int {
    ASKED_BY.store(0, Ordering::Release);
    Python::attach(|py| {
        let mut errors = std::mem::take(&mut notices().again);
        errors.extend(mapped_file::untold_damage());
        let Some(exception) = exception(py, &errors) else { return 0 };
        // Without the hook the exception is raised all the same, once.
        let _ = wrap_unraisable_hook(py);
        let address = exception.value(py).as_ptr().addr();
        notices().note(address, errors);
        exception.restore(py);
        -1
    })
}

/// Makes one exception for all, as a second one would be raised in the handler of the first.
fn exception(py: Python<'_>, errors: &[Error]) -> Option<PyErr> {
    let (first, others) = errors.split_first()?;
    let exception = PyErr::from(first.clone());
    let mut notes: Vec<_> = others.iter().take(MAX_NOTES).map(full_text).collect();
    let left = others.len().saturating_sub(MAX_NOTES);
    if left > 0 {
        notes.push(format!("and {left} more files").into());
    }
    for note in notes {
        // A help; without it it is the same exception.
        let _ = exception.value(py).call_method1(intern!(py, "add_note"), (note,));
    }
    Some(exception)
}

fn wrap_unraisable_hook(py: Python<'_>) -> PyResult<()> {
    let sys = py.import(intern!(py, "sys"))?;
    let name = intern!(py, "unraisablehook");
    let previous = sys.getattr(name)?;
    if previous.is_instance_of::<UnraisableHook>() {
        return Ok(());
    }
    sys.setattr(name, UnraisableHook { previous: previous.unbind() }.into_pyobject(py)?)
}

/// `sys.unraisablehook` from the first damage on: does what was there before, and has our exceptions raised again.
#[pyclass(module = "pagestream._native", frozen)]
struct UnraisableHook {
    previous: Py<PyAny>,
}

#[pymethods]
impl UnraisableHook {
    fn __call__(&self, py: Python<'_>, unraisable: &Bound<'_, PyAny>) -> PyResult<()> {
        let done = self.previous.call1(py, (unraisable,)).map(drop);
        let mut untold = take_told(&unraisable.getattr(intern!(py, "exc_value"))?)?;
        // It may have been raised inside of the hook, too.
        let done = match done {
            Err(error) => {
                let more = take_told(error.value(py).as_any())?;
                let is_ours = !more.is_empty();
                untold.extend(more);
                if is_ours { Ok(()) } else { Err(error) }
            }
            Ok(()) => Ok(()),
        };
        if !untold.is_empty() {
            notices().again.extend(untold);
            ask_for_raise();
        }
        done
    }
}

/// Takes what an exception, or one in whose handler it was raised, told of damage.
fn take_told(exception: &Bound<'_, PyAny>) -> PyResult<Vec<Error>> {
    let (mut told, mut next) = (Vec::new(), exception.clone());
    for _ in 0..MAX_CONTEXTS {
        if next.is_none() {
            break;
        }
        told.extend(notices().take(next.as_ptr().addr()));
        next = next.getattr(intern!(exception.py(), "__context__"))?;
    }
    Ok(told)
}
