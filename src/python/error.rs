//! Conversion of [`Error`] to Python exceptions.

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyBufferError, PyIndexError, PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::allocate::OutOfMemory;
use crate::error::{Error, ReadCause};

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        Python::attach(|py| convert(py, &error).unwrap_or_else(|failure| failure))
    }
}

impl From<OutOfMemory> for PyErr {
    fn from(error: OutOfMemory) -> Self {
        Error::from(error).into()
    }
}

fn convert(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let message = error.message();
    Ok(match error {
        // The constructor of OSError picks a subclass by the number, for example FileNotFoundError.
        Error::System { errno, path, .. } if path.as_os_str().is_empty() => {
            PyOSError::new_err((*errno, message))
        }
        Error::System { errno, path, .. } => PyOSError::new_err((*errno, message, text(path))),
        Error::MappedRead { path, offset, length, cause } => {
            let errno = match cause {
                ReadCause::Io { errno, .. } => *errno,
                ReadCause::Truncated { .. } | ReadCause::EndedEarly { .. } | ReadCause::Damaged { .. } => {
                    libc::EIO
                }
            };
            let exception = class(py, "MappedReadError")?.call1((errno, message, text(path)))?;
            exception.setattr("offset", offset)?;
            exception.setattr("length", length)?;
            PyErr::from_value(exception)
        }
        Error::FileChanged { path, .. } => {
            PyErr::from_value(class(py, "FileChangedError")?.call1((libc::ESTALE, message, text(path)))?)
        }
        Error::Format { .. } => PyErr::from_value(class(py, "FormatError")?.call1((full_text(error),))?),
        Error::Safetensors { .. } => {
            PyErr::from_value(class(py, "SafetensorError")?.call1((full_text(error),))?)
        }
        Error::Checksum(failure) => {
            let exception = class(py, "ChecksumError")?.call1((full_text(error),))?;
            exception.setattr("path", text(&failure.path))?;
            exception.setattr("name", &failure.name)?;
            exception.setattr("offset", failure.offset)?;
            exception.setattr("expected", &failure.expected)?;
            exception.setattr("found", &failure.found)?;
            PyErr::from_value(exception)
        }
        Error::OutOfRange { .. } | Error::Closed { .. } | Error::Argument { .. } => {
            PyValueError::new_err(full_text(error))
        }
        Error::Index { .. } => PyIndexError::new_err(message),
        Error::Memory(_) => PyMemoryError::new_err(message),
        Error::Buffer { .. } => PyBufferError::new_err(message),
    })
}

/// A class of `pagestream.errors`, which Python defines because the stable ABI of 3.11 cannot derive
/// from `OSError`.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("pagestream.errors")?.getattr(name)
}

/// Returns the message with its path in front. Both have surrogate escapes if the path is not UTF-8.
pub fn full_text(error: &Error) -> OsString {
    let mut whole = OsString::new();
    if let Some(path) = error.path().filter(|path| !path.as_os_str().is_empty()) {
        whole.push(path);
        whole.push(": ");
    }
    whole.push(error.message());
    whole
}

/// Returns a path as Python text, with its surrogate escapes.
pub fn text(path: &Path) -> OsString {
    path.as_os_str().to_owned()
}

/// The first exception that Python code raised when detached native code called it.
#[derive(Default)]
pub struct Raised(Mutex<Option<PyErr>>);

impl Raised {
    /// Calls Python code, attached to the interpreter. On an error, the caller should end the native code.
    pub fn call(&self, call: impl FnOnce(Python<'_>) -> PyResult<()>) -> Result<(), Error> {
        let Some(called) = Python::try_attach(call) else {
            return Err(Error::argument("the interpreter ends"));
        };
        called.map_err(|raised| {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(raised);
            Error::argument("Python code raised an exception")
        })
    }

    /// Returns the exception, if there is one, or the result of the native code.
    pub fn or<T>(&self, done: Result<T, Error>) -> PyResult<T> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(raised) => Err(raised),
            None => Ok(done?),
        }
    }
}
