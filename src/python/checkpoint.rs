//! `Checkpoint`: several safetensors files. The Python package `weights/` uses it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pyo3::exceptions::PyKeyError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList, PyString, PyTuple};

use super::error::{Raised, text};
use super::files::{audit_open, path_of, weakest_reason};
use super::lead::FileLead;
use super::names::list_of_names;
use super::next_file::NextFile;
use super::warming_shard::WarmingShard;
use super::weights::{PyWeightFile, dtype_word};
use crate::leading::lead::Handover;
use crate::mapped_file::{Mode, RequestedMode, page_cache};
use crate::warming::warm::WarmingSlot;
use crate::weights::checkpoint::{Assembly, Checkpoint};
use crate::weights::file::WeightFile;
use crate::weights::header::TensorEntry;
use crate::weights::locate::{AccessRequest, CheckpointPath};
use crate::weights::strictness::Strictness;
use crate::words::words;

words! {
    /// The kind of paths.
    enum What as "what" {
        Path = "path",
        Files = "files",
        /// A path with [`Assembly::Partial`].
        Partial = "partial",
        /// A path with [`Assembly::Apart`].
        Apart = "apart",
    }
}

#[pyclass(name = "Checkpoint", module = "pagestream._native", weakref, frozen)]
#[derive(Debug)]
pub struct PyCheckpoint {
    checkpoint: Arc<Checkpoint>,
    /// Paths of the files as Python strings.
    paths: Vec<Py<PyString>>,
    /// The read-ahead of each file.
    leads: Vec<Arc<FileLead>>,
    warm: Arc<WarmingSlot>,
}

impl Drop for PyCheckpoint {
    fn drop(&mut self) {
        // Closing files can take long on network file systems.
        Python::try_attach(|py| self.close(py));
    }
}

impl PyCheckpoint {
    pub fn shared(&self) -> Arc<Checkpoint> {
        self.checkpoint.clone()
    }

    /// Returns the slot of the lead that `warm` started.
    pub fn warm_slot(&self) -> Arc<WarmingSlot> {
        self.warm.clone()
    }

    /// Returns the number of a tensor's file, and the offset and length of the tensor's bytes in it.
    pub fn byte_range(&self, name: &Bound<'_, PyString>) -> PyResult<(usize, u64, u64)> {
        let (number, entry) = self.find(name)?;
        Ok((number, entry.offset, entry.len))
    }

    /// Returns the number of a tensor's file, and the tensor's entry in the header.
    pub fn find(&self, name: &Bound<'_, PyString>) -> PyResult<(usize, TensorEntry<'_>)> {
        self.lookup(name).ok_or_else(|| self.no_tensor(name))
    }

    fn lookup(&self, name: &Bound<'_, PyString>) -> Option<(usize, TensorEntry<'_>)> {
        // No name in a header has lone surrogates.
        self.checkpoint.tensor(name.to_str().ok()?)
    }

    /// Creates the error for an unknown name. Its argument is the name, as with any mapping, and a note has the
    /// details.
    fn no_tensor(&self, name: &Bound<'_, PyString>) -> PyErr {
        let error = PyKeyError::new_err(name.clone().unbind());
        let files = match &self.checkpoint.paths[..] {
            [] => String::from("no file"),
            [only] => only.display().to_string(),
            [first, others @ ..] => format!("{} and {} more files", first.display(), others.len()),
        };
        let tensors = self.checkpoint.len();
        let note = format!("none of the {tensors} tensors in {files} has this name; keys() lists them");
        // The note is optional: the exception is valid without it.
        let _ = error.value(name.py()).call_method1(intern!(name.py(), "add_note"), (note,));
        error
    }
}

/// Name, element type, shape, size in bytes, path of the file, and offset there.
type InfoFields<'py> = (
    Bound<'py, PyString>,
    &'py Bound<'py, PyString>,
    Bound<'py, PyTuple>,
    u64,
    &'py Bound<'py, PyString>,
    u64,
);

/// Creates the lead of each file. Each lead continues with the next file.
fn leads_of(
    checkpoint: &Arc<Checkpoint>,
    mode: RequestedMode,
    ahead_bytes: Option<u64>,
    warm: &Arc<WarmingSlot>,
) -> Vec<Arc<FileLead>> {
    let mut leads: Vec<Arc<FileLead>> = Vec::with_capacity(checkpoint.paths.len());
    for number in (0..checkpoint.paths.len()).rev() {
        let next = leads.last().map(|lead| {
            // A weak reference: dropping a long chain of leads would recurse.
            let (files, lead, next) = (checkpoint.clone(), Arc::downgrade(lead), number + 1);
            let go_on = move |handover: &Handover, _: &Arc<AtomicBool>| {
                let Some(lead) = lead.upgrade() else { return Ok(()) };
                let WeightFile { file, header } = files.file(next)?;
                lead.begin(&header, file.opened()?, handover)
            };
            NextFile::new(checkpoint.paths[next].clone(), mode, go_on)
        });
        let warm = WarmingShard::new(warm.clone(), number);
        leads.push(Arc::new(FileLead::of_shard(ahead_bytes, next, warm)));
    }
    leads.reverse();
    leads
}

#[pymethods]
impl PyCheckpoint {
    /// Opens a path of any kind, or the files of a list.
    #[new]
    fn new(
        py: Python<'_>,
        paths: Vec<Vec<u8>>,
        what: &str,
        mode: &str,
        strict: bool,
        cache_root: Option<&[u8]>,
        ahead_bytes: Option<u64>,
    ) -> PyResult<Self> {
        let what = What::from_word(what)?;
        let path_buf = |encoded: &Vec<u8>| path_of(encoded).map(PathBuf::from);
        let mut paths = paths.iter().map(path_buf).collect::<PyResult<Vec<_>>>()?;
        let source = match paths.pop() {
            Some(path) if what != What::Files => CheckpointPath::Path(path),
            last => CheckpointPath::Files(paths.into_iter().chain(last).collect()),
        };
        let assembly = match what {
            What::Path | What::Files => Assembly::Whole,
            What::Partial => Assembly::Partial,
            What::Apart => Assembly::Apart,
        };
        let cache_root = cache_root.map(path_of).transpose()?;
        let mode = RequestedMode::from_word(mode)?;
        let strictness = Strictness::from(strict);
        let raised = Raised::default();
        let gate = |access: AccessRequest<'_>| {
            raised.call(|py| match access {
                AccessRequest::List(folder) => {
                    py.import("sys")?.call_method1("audit", ("os.listdir", text(folder))).map(drop)
                }
                AccessRequest::Open(index) => audit_open(py, index, RequestedMode::Read),
            })
        };
        let located = py.detach(|| source.locate(cache_root, strictness, &gate));
        let list = raised.or(located)?;
        py.check_signals()?;
        for shard in &list.shards {
            audit_open(py, &shard.path, mode)?;
        }
        let raised = Raised::default();
        let mut keep_going = || raised.call(|py| -> PyResult<()> { py.check_signals() }).is_ok();
        let opened = py.detach(|| Checkpoint::open(list, mode, strictness, assembly, &mut keep_going));
        let checkpoint = Arc::new(raised.or(opened)?);
        let warm = Arc::default();
        let leads = leads_of(&checkpoint, mode, ahead_bytes, &warm);
        let path_text = |path: &PathBuf| Ok(text(path).into_pyobject(py)?.unbind());
        let paths = checkpoint.paths.iter().map(path_text).collect::<PyResult<_>>()?;
        Ok(Self { checkpoint, paths, leads, warm })
    }

    /// The paths of the files, as the caller or the checkpoint spells them.
    #[getter]
    fn paths(&self) -> &[Py<PyString>] {
        &self.paths
    }

    /// The absolute paths of the files.
    #[getter]
    fn absolute_paths(&self) -> Vec<OsString> {
        let numbers = 0..self.paths.len();
        numbers.map(|number| text(self.checkpoint.files.absolute(number))).collect()
    }

    /// The weakest mode in use.
    #[getter]
    fn mode(&self) -> &'static str {
        self.checkpoint.weakest().map_or(Mode::Shared, |(_, facts, _)| facts.mode).word()
    }

    /// Why no better mode is in use, with the file's path if there are several.
    #[getter]
    fn reason(&self) -> Option<OsString> {
        let (path, facts, count) = self.checkpoint.weakest()?;
        let reason = facts.reason.as_deref()?;
        let several = self.checkpoint.paths.len() > 1;
        Some(weakest_reason(reason, several.then_some(path), count))
    }

    /// Returns the number of a tensor's file among `paths`.
    fn number_of(&self, name: &Bound<'_, PyString>) -> PyResult<usize> {
        Ok(self.find(name)?.0)
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.checkpoint.warnings.clone()
    }

    /// Why a partial checkpoint is incomplete.
    #[getter]
    fn problem(&self) -> Option<&str> {
        self.checkpoint.problem.as_deref()
    }

    fn __len__(&self) -> usize {
        self.checkpoint.len()
    }

    fn __contains__(&self, name: &Bound<'_, PyString>) -> bool {
        self.lookup(name).is_some()
    }

    /// Returns the names in order of the files, and for each file in order of the data.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        list_of_names(py, self.checkpoint.names())
    }

    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.checkpoint.metadata.as_ref().map(|pairs| pairs.into_py_dict(py)).transpose()
    }

    /// Returns the metadata from the header of the file with this number in `paths`.
    fn metadata_of<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.checkpoint.header(number).metadata().map(|pairs| pairs.into_py_dict(py)).transpose()
    }

    /// The `metadata` of the index, as JSON.
    #[getter]
    fn index_metadata(&self) -> Option<&str> {
        self.checkpoint.index_metadata.as_deref()
    }

    /// Returns the fields of a `TensorInfo`, even after `close`.
    fn info_fields<'py>(
        &'py self,
        py: Python<'py>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<InfoFields<'py>> {
        let (number, TensorEntry { dtype, shape, len, offset, .. }) = self.find(name)?;
        let path = self.paths[number].bind(py);
        Ok((name.clone(), dtype_word(py, dtype), PyTuple::new(py, shape)?, len, path, offset))
    }

    /// Returns the tensor's name in its file, even after `close`.
    fn name_in_file(&self, name: &Bound<'_, PyString>) -> PyResult<&str> {
        Ok(self.find(name)?.1.name)
    }

    /// Returns the file of a tensor, and opens it again if the limit of open files closed it. Without `reads_ahead` its
    /// tensors come from the mapping.
    #[pyo3(signature = (name, reads_ahead = true))]
    fn file_of(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        reads_ahead: bool,
    ) -> PyResult<PyWeightFile> {
        let (number, _) = self.find(name)?;
        let file = match self.checkpoint.open_file(number) {
            Some(file) => file,
            None => py.detach(|| self.checkpoint.file(number))?,
        };
        if reads_ahead {
            return Ok(PyWeightFile::of(file, self.leads[number].clone()));
        }
        let lead = FileLead::new(Some(0), None);
        lead.close(); // A closed lead probes no pages.
        Ok(PyWeightFile::of(file, Arc::new(lead)))
    }

    /// Records that the caller has used a tensor of its file. If memory is short, its pages are evicted first.
    fn mark_used(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> PyResult<()> {
        let (number, TensorEntry { offset, len, .. }) = self.find(name)?;
        py.detach(|| {
            // A file that was closed meanwhile has no pages to mark.
            if let Some(Ok(opened)) = self.checkpoint.open_file(number).map(|file| file.file.opened()) {
                page_cache::mark_used(&opened, offset, len);
            }
        });
        Ok(())
    }

    /// Checks that the file of a tensor, if it is open, has not changed since it was opened, as far as the kernel
    /// knows.
    fn verify_file(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> PyResult<()> {
        let (number, _) = self.find(name)?;
        let verify =
            || self.checkpoint.open_file(number).map_or(Ok(()), |file| file.file.opened()?.verify_as_known());
        Ok(py.detach(verify)?)
    }

    /// The number of open files.
    #[getter]
    fn open_files(&self) -> usize {
        self.checkpoint.files.open_count()
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.checkpoint.check())?)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.checkpoint.files.is_closed()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            self.warm.replace(None);
            self.leads.iter().for_each(|lead| lead.close());
            self.checkpoint.files.close();
            self.warm.replace(None); // Another thread may have started one meanwhile.
        });
    }
}
