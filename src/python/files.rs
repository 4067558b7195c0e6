//! `MappedFile`. Its Python subclass has the documentation.

use std::ffi::OsStr;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyBufferError, PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use super::error::{Raised, full_text, text};
use super::export::{self, Access, Export, Exportable, PyExporter, Requester};
use super::writable::{self, WritableBuffer};
use crate::mapped_file::{MappedFile, RequestedMode, View, locking, page_cache};
use crate::os::file::fsinfo::FileSystem;
use crate::os::memory::advise::Advice;
use crate::os::process::fork;

/// Returns an offset or a length in bytes. The caller checks that it lies inside the file.
fn bytes(number: &Bound<'_, PyAny>) -> PyResult<u64> {
    number.extract().map_err(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(number.py()) {
            return error;
        }
        PyValueError::new_err(format!("an offset or a length in bytes must be 0 to 2^64 - 1, not {number}"))
    })
}

fn bytes_or_rest(number: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if number.is_none() { Ok(None) } else { bytes(number).map(Some) }
}

/// The fields of Python's `FileSystem`, by name.
#[derive(IntoPyObject)]
pub struct FileSystemFields {
    #[pyo3(item("type"))]
    kind: String,
    source: OsString,
    mount_point: OsString,
    options: OsString,
    is_network: bool,
    read_ahead_bytes: Option<u64>,
}

/// The fields of Python's `Residency`, by name.
#[derive(IntoPyObject)]
struct ResidencyFields<'py> {
    fraction: f64,
    /// One byte per page.
    pages: Option<Bound<'py, PyBytes>>,
    method: &'static str,
    exact: bool,
}

#[pyclass(name = "MappedFile", module = "pagestream._native", extends = PyExporter, subclass, weakref, frozen)]
#[derive(Debug)]
pub struct PyMappedFile {
    file: Arc<MappedFile>,
}

/// The whole file, read-only.
#[derive(Debug)]
struct WholeFile {
    file: Arc<MappedFile>,
    /// One view of each mapping exported to code that may keep only this object.
    kept: Mutex<Vec<View>>,
}

impl Exportable for WholeFile {
    fn export(&self, py: Python<'_>, requester: Requester) -> PyResult<Export> {
        let opened = self.file.opened().map_err(|error| PyBufferError::new_err(full_text(&error)))?;
        let Some(view) = py.detach(|| opened.array_view(0, opened.size()))? else {
            let why = opened.facts.reason.as_deref().unwrap_or("as was asked for");
            let mut message = text(self.file.path());
            message.push(format!(
                ": in \"read\" mode ({why}) there is no memory to export; use read(), read_into() or view()"
            ));
            return Err(PyBufferError::new_err(message));
        };
        view.check_damage()?;
        let (address, len, access) = (view.as_ptr(), view.len(), Access::ReadOnly);
        if requester != Requester::KeepsView {
            fork::with_lock(&self.kept, |kept| {
                if kept.iter().all(|known| known.as_ptr() != address) {
                    kept.push(view.clone());
                }
            });
        }
        let holder = Some(Py::new(py, PyExporter::new((view, access)))?);
        Ok(Export { address, len, access, holder })
    }

    /// Closing can take long on network file systems.
    fn is_last(&self) -> bool {
        true
    }
}

/// Returns the path for bytes from `os.fsencode`.
pub fn path_of(encoded: &[u8]) -> PyResult<&Path> {
    if encoded.contains(&0) {
        return Err(PyValueError::new_err(format!(
            "{}: a path cannot contain a NUL character",
            String::from_utf8_lossy(encoded).escape_debug()
        )));
    }
    Ok(Path::new(OsStr::from_bytes(encoded)))
}

/// Explains why the weakest of several files has its mode: the reason, the path if there are several, and their number.
pub fn weakest_reason(reason: &str, path: Option<&Path>, count: usize) -> OsString {
    let mut words = OsString::new();
    if let Some(path) = path {
        words.push(path);
        words.push(": ");
    }
    words.push(reason);
    if count > 1 {
        words.push(format!(" (and {} more files)", count - 1));
    }
    words
}

/// Raises the audit event before a file is opened, so that a hook can prevent it.
pub fn audit_open(py: Python<'_>, path: &Path, mode: RequestedMode) -> PyResult<()> {
    py.import("sys")?.call_method1("audit", ("pagestream.open", text(path), mode.word())).map(drop)
}

pub fn file_system_of(py: Python<'_>, file: &MappedFile) -> PyResult<FileSystemFields> {
    let found = py.detach(|| file.file_system().cloned())?;
    let FileSystem { kind, source, mount_point, options, is_network, read_ahead_bytes } = found;
    Ok(FileSystemFields { kind, source, mount_point, options, is_network, read_ahead_bytes })
}

impl PyMappedFile {
    /// Returns the length of a range, where None means the rest of the file. Rejects a range outside of the file.
    fn length(&self, offset: u64, length: Option<u64>) -> PyResult<u64> {
        let length = length.unwrap_or_else(|| self.file.size().saturating_sub(offset));
        self.file.opened()?.check_range(offset, length)?;
        Ok(length)
    }
}

#[pymethods]
impl PyMappedFile {
    #[new]
    fn new(py: Python<'_>, path: &[u8], mode: &str) -> PyResult<PyClassInitializer<Self>> {
        let (path, mode) = (path_of(path)?, RequestedMode::from_word(mode)?);
        audit_open(py, path, mode)?;
        let file = Arc::new(py.detach(|| MappedFile::open(path, mode))?);
        let memory = WholeFile { file: file.clone(), kept: Mutex::default() };
        Ok(PyClassInitializer::from(PyExporter::new(memory)).add_subclass(Self { file }))
    }

    #[getter]
    fn path(&self) -> std::ffi::OsString {
        text(self.file.path())
    }

    #[getter(_absolute_path)]
    fn absolute_path(&self) -> std::ffi::OsString {
        text(self.file.absolute())
    }

    #[getter]
    fn size(&self) -> u64 {
        self.file.size()
    }

    #[getter]
    fn mode(&self) -> &'static str {
        self.file.facts().mode.word()
    }

    #[getter]
    fn requested_mode(&self) -> &'static str {
        self.file.requested.word()
    }

    #[getter]
    fn reason(&self) -> Option<String> {
        self.file.facts().reason
    }

    #[getter]
    fn closed(&self) -> bool {
        self.file.is_closed()
    }

    /// (type, source, mount_point, options, is_network, read_ahead_bytes)
    #[getter]
    fn file_system(&self, py: Python<'_>) -> PyResult<FileSystemFields> {
        file_system_of(py, &self.file)
    }

    #[pyo3(signature = (offset = 0, length = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = bytes)] offset: u64,
        #[pyo3(from_py_with = bytes_or_rest)] length: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let opened = self.file.opened()?;
        let length = self.length(offset, length)?;
        let len = usize::try_from(length)?;
        writable::new_bytes(py, len, |start, chunk| opened.read_into(offset + start as u64, chunk))
    }

    #[pyo3(signature = (buffer, offset = 0))]
    fn read_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = bytes)] offset: u64,
    ) -> PyResult<u64> {
        let opened = self.file.opened()?;
        let mut buffer = WritableBuffer::of(buffer)?;
        let length = self.length(offset, None)?.min(buffer.len() as u64);
        buffer.fill(py, length as usize, |start, chunk| opened.read_into(offset + start as u64, chunk))?;
        Ok(length)
    }

    #[pyo3(signature = (offset = 0, length = None))]
    fn view<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = bytes)] offset: u64,
        #[pyo3(from_py_with = bytes_or_rest)] length: Option<u64>,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        let length = self.length(offset, length)?;
        let opened = self.file.opened()?;
        match py.detach(|| opened.array_view(offset, length))? {
            Some(view) => PyMemoryView::from(export::view_object(py, view, Access::ReadOnly)?.as_any()),
            None => PyMemoryView::from(self.read(py, offset, Some(length))?.as_any()),
        }
    }

    #[pyo3(signature = (advice, offset = 0, length = None))]
    fn advise(
        &self,
        py: Python<'_>,
        advice: &str,
        #[pyo3(from_py_with = bytes)] offset: u64,
        #[pyo3(from_py_with = bytes_or_rest)] length: Option<u64>,
    ) -> PyResult<bool> {
        let known = Advice::from_word(advice)?;
        let length = self.length(offset, length)?;
        Ok(py.detach(|| page_cache::advise(&*self.file.guarded()?, known, offset, length))?)
    }

    /// (fraction, one byte per page or None, method, exact)
    fn residency<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = bytes)] offset: u64,
        #[pyo3(from_py_with = bytes_or_rest)] length: Option<u64>,
        seed: u64,
    ) -> PyResult<ResidencyFields<'py>> {
        let length = self.length(offset, length)?;
        let found = py.detach(|| page_cache::residency(&*self.file.guarded()?, offset, length, seed))?;
        let bytes_of = |pages: Vec<bool>| {
            PyBytes::new_with(py, pages.len(), |bytes| {
                bytes.iter_mut().zip(pages).for_each(|(byte, is_cached)| *byte = is_cached.into());
                Ok(())
            })
        };
        let pages = found.pages.map(bytes_of).transpose()?;
        Ok(ResidencyFields {
            fraction: found.fraction,
            pages,
            method: found.method.word(),
            exact: found.exact,
        })
    }

    /// Calls `progress(done_bytes)` after each chunk, unless it is None.
    fn warm(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = bytes)] offset: u64,
        #[pyo3(from_py_with = bytes_or_rest)] length: Option<u64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let length = self.length(offset, length)?;
        let raised = Raised::default();
        let mut report = |done: u64| {
            raised
                .call(|py| {
                    py.check_signals()?;
                    progress.as_ref().map_or(Ok(()), |progress| progress.call1(py, (done,)).map(drop))
                })
                .is_ok()
        };
        let done = py.detach(|| page_cache::warm(&*self.file.guarded()?, offset, length, &mut report));
        raised.or(done)
    }

    fn evict(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| page_cache::evict(&*self.file.guarded()?))?)
    }

    fn lock(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| locking::lock(&*self.file.guarded()?))?)
    }

    fn unlock(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| locking::unlock(&*self.file.guarded()?))?)
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.file.check())?)
    }

    fn refresh(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| self.file.refresh())?)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.file.close());
    }
}
