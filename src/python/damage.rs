//! Raises an exception in the main thread after a file was truncated, or its storage failed, while Python code was
//! using arrays over it.
//!
//! ```text
//!  fault ──► ask ──► raise, in the main thread ──► code catches it
//!             ▲                                 └► none can: sys.unraisablehook
//!             └────────────────────────────────────┘
//! ```
//!
//! The interpreter raises the exception wherever its main thread happens to be. In a finaliser, a weakref callback or a
//! fork hook, no code can catch it: the interpreter passes it to `sys.unraisablehook` and continues. The first damage
//! therefore wraps that hook, and any of our exceptions that reaches the hook is raised again.
//!
//! A forked child inherits the request for [`raise`]. The interpreter would run it in the child's first fork hook and
//! abort that hook: `random` would not be seeded again, or a lock of `logging` would stay locked. The request therefore
//! identifies its process. The child drops its parent's request, and asks again in its first call of ours.

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

/// Fork generation (plus 1) of the process with a pending call; 0 if no call is pending. The interpreter's list of
/// pending calls is short, so a process adds only one call at a time. A forked child asks for its own call, because its
/// list may lack the parent's.
static ASKED_BY: AtomicU64 = AtomicU64::new(0);

/// Maximum number of other files that an exception names.
const MAX_NOTES: usize = 5;
/// Maximum number of raised exceptions whose damage is kept.
const MAX_RAISED: usize = 8;
/// Maximum number of exceptions visited in a context chain.
const MAX_CONTEXTS: usize = 32;

/// Locked only by threads that hold the interpreter's lock.
static NOTICES: Mutex<Notices> = Mutex::new(Notices { raised: Vec::new(), again: Vec::new() });

struct Notices {
    /// Addresses of the last exceptions, with the damage that each reported.
    raised: Vec<(usize, Vec<Error>)>,
    /// Uncaught damage, to be raised again.
    again: Vec<Error>,
}

impl Notices {
    /// Records the damage reported by the exception at an address.
    fn note(&mut self, address: usize, errors: Vec<Error>) {
        if self.raised.len() == MAX_RAISED {
            self.raised.remove(0);
        }
        self.raised.push((address, errors));
    }

    /// Removes and returns the damage recorded for the exception at an address. Empty if the exception is not ours.
    fn take(&mut self, address: usize) -> Vec<Error> {
        let place = self.raised.iter().position(|(of, _)| *of == address);
        place.map(|place| self.raised.remove(place).1).unwrap_or_default()
    }
}

/// Locks the notices. No Python code may run meanwhile, because [`raise`] could interrupt it.
fn notices() -> MutexGuard<'static, Notices> {
    NOTICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the hook that raises an exception on damage.
pub fn watch() {
    mapped_file::on_damage(ask_for_raise);
}

/// Asks the interpreter to call [`raise`]. Safe under the interpreter's lock, and in the SIGBUS handler if the
/// fault is at an instruction that reads or writes an array (see [`export::ask_for_call`]).
extern "C" fn ask_for_raise() {
    let asker = fork::generation() + 1;
    if ASKED_BY.swap(asker, Ordering::AcqRel) == asker {
        return;
    }
    if export::ask_for_call(raise, asker) {
        // The main thread may be blocked, for example on another thread's end, or on a queue that another thread fills.
        fault::wake_first_thread();
    } else {
        // The interpreter's list is full. The next damage asks again.
        ASKED_BY.store(0, Ordering::Release);
    }
}

/// Raises one exception for all new damage. The interpreter calls this in its main thread, where it also checks for
/// signals. `asker` is the value of [`ASKED_BY`] when the call was requested.
extern "C" fn raise(asker: *mut c_void) -> c_int {
    if asker != export::argument(fork::generation() + 1) {
        // The parent asked, before the fork.
        return 0;
    }
    ASKED_BY.store(0, Ordering::Release);
    Python::attach(|py| {
        let mut errors = std::mem::take(&mut notices().again);
        errors.extend(mapped_file::untold_damage());
        let Some(exception) = exception(py, &errors) else { return 0 };
        // If the hook cannot be wrapped, the exception is still raised once.
        let _ = wrap_unraisable_hook(py);
        let address = exception.value(py).as_ptr().addr();
        notices().note(address, errors);
        exception.restore(py);
        -1
    })
}

/// Creates one exception for all errors, because a second one would interrupt the handling of the first.
fn exception(py: Python<'_>, errors: &[Error]) -> Option<PyErr> {
    let (first, others) = errors.split_first()?;
    let exception = PyErr::from(first.clone());
    let mut notes: Vec<_> = others.iter().take(MAX_NOTES).map(full_text).collect();
    let left = others.len().saturating_sub(MAX_NOTES);
    if left > 0 {
        notes.push(format!("and {left} more files").into());
    }
    for note in notes {
        // The note is optional: the exception is valid without it.
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

/// Calls the previous `sys.unraisablehook`, then schedules our exceptions to be raised again.
#[pyclass(module = "pagestream._native", frozen)]
struct UnraisableHook {
    previous: Py<PyAny>,
}

#[pymethods]
impl UnraisableHook {
    fn __call__(&self, py: Python<'_>, unraisable: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut done = self.previous.call1(py, (unraisable,)).map(drop);
        let mut untold = take_told(&unraisable.getattr(intern!(py, "exc_value"))?)?;
        // The previous hook may also have raised one of our exceptions.
        if let Err(error) = &done {
            let more = take_told(error.value(py).as_any())?;
            if !more.is_empty() {
                untold.extend(more);
                done = Ok(());
            }
        }
        if !untold.is_empty() {
            notices().again.extend(untold);
            ask_for_raise();
        }
        done
    }
}

/// Removes and returns the damage recorded for an exception, or for any exception in its context chain.
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
