//! Waits for native threads without the interpreter, and hears Ctrl-C meanwhile.

use std::time::Duration;

use pyo3::prelude::*;

use crate::fetch::crew::PERIOD;
use crate::fetch::next::Next;

/// Waits for a result of native threads. Returns `None` once no more follow.
///
/// `next` waits for at most the time that it is given.
pub fn wait<T: Send, E: Send + Into<PyErr>>(
    py: Python<'_>,
    next: impl Fn(Duration) -> Result<Next<T>, E> + Sync,
) -> PyResult<Option<T>> {
    loop {
        match py.detach(|| next(PERIOD)).map_err(Into::into)? {
            Next::Ready(result) => return Ok(Some(result)),
            Next::End => return Ok(None),
            Next::NotYet => py.check_signals()?,
        }
    }
}
