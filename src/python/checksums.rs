//! `ChecksumRun`: creates or compares the checksums of a checkpoint's files. `weights/checksums.py` uses it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use twox_hash::XxHash3_128;

use super::checkpoint::PyCheckpoint;
use super::error::{Raised, text};
use super::export::drop_detached;
use super::files::audit_open;
use crate::allocate;
use crate::error::{Error, Result};
use crate::fetch::crew::{PERIOD, check_threads};
use crate::fetch::next::Next;
use crate::hashing::{Digests, HashRequest, Hashing, Prepared};
use crate::mapped_file::{RequestedMode, identity_at};
use crate::os::fault;
use crate::streaming::engine::Inspect;
use crate::weights::blob;
use crate::weights::checkpoint::Checkpoint;
use crate::weights::checksums::{self, Checksums, Subject};
use crate::weights::file::WeightFile;
use crate::words::words;

words! {
    /// The task of a run.
    enum ChecksumTask as "task" {
        /// Create the text to store beside each file.
        Write = "write",
        /// Compare whole files with all of their checksums.
        Verify = "verify",
        /// Compare sizes and headers. Tensors are compared later, as they are read.
        Headers = "headers",
    }
}

/// The result for a file.
#[derive(Debug, Default)]
struct FileOutcome {
    number: usize,
    is_checked: bool,
    failures: Vec<Error>,
    /// The text to write, and its path.
    text: Option<(PathBuf, String)>,
    checksums: Option<Checksums>,
}

/// For Python: number, whether the file was compared, failures as exceptions, path and text to write.
type OutcomeFields = (usize, bool, Vec<Py<PyAny>>, Option<(OsString, String)>);

#[pyclass(name = "ChecksumRun", module = "pagestream._native", frozen)]
pub struct PyChecksumRun {
    /// `None` only during `drop`.
    hashing: Option<Hashing<FileOutcome>>,
    checkpoint: Arc<Checkpoint>,
    total_bytes: u64,
    raised: Arc<Raised>,
    /// The checksums of files whose headers were compared.
    known: Mutex<HashMap<usize, Checksums>>,
}

fn size_of(checkpoint: &Checkpoint, number: usize) -> u64 {
    checkpoint.files.facts(number).identity.size
}

fn prepare(
    checkpoint: &Checkpoint,
    task: ChecksumTask,
    raised: &Raised,
    number: usize,
) -> Result<Prepared<FileOutcome>> {
    let WeightFile { file, header } = checkpoint.file(number)?;
    let (opened, path) = (file.opened()?, checkpoint.paths[number].clone());
    let file_bytes = opened.size();
    let outcome = FileOutcome { number, ..FileOutcome::default() };
    let sha256 = match task {
        ChecksumTask::Write => {
            let (span_ends, place) = (checksums::span_ends(&header), checksums::path_beside(file.absolute()));
            let hashed = HashRequest { opened, len: file_bytes, span_ends, sha256: false };
            let finish = move |digests: Digests| {
                let text = checksums::text(&header, file_bytes, &digests.spans);
                FileOutcome { text: Some((place, text)), ..outcome }
            };
            return Ok(Prepared::Hash(hashed, Box::new(finish)));
        }
        ChecksumTask::Verify => opened.real_path().and_then(|path| blob::sha256_in_name(&path)),
        ChecksumTask::Headers => None,
    };
    let beside = checksums::path_beside(&path);
    if identity_at(&checksums::path_beside(file.absolute())).is_ok() {
        raised.call(|py| audit_open(py, &beside, RequestedMode::Read))?;
    }
    let (checksums, mut failures) = match Checksums::beside(&file.origin, &beside, &header)? {
        Some(Ok(checksums)) => (Some(checksums), Vec::new()),
        Some(Err(failure)) => (None, vec![failure]),
        None if task == ChecksumTask::Headers => (None, vec![checksums::missing(&path)]),
        None => (None, Vec::new()),
    };
    if checksums.is_none() && sha256.is_none() {
        return Ok(Prepared::Known(FileOutcome { failures, ..outcome }));
    }
    let (len, span_ends) = match (task, &checksums) {
        (ChecksumTask::Headers, _) => (header.data_start, vec![header.data_start]),
        (_, Some(_)) => (file_bytes, checksums::span_ends(&header)),
        (_, None) => (file_bytes, Vec::new()),
    };
    let hashed = HashRequest { opened, len, span_ends, sha256: sha256.is_some() };
    let finish = move |digests: Digests| {
        let of = Subject { path: &path, header: &header, file_bytes };
        if let Some(checksums) = &checksums {
            failures.extend(checksums.failures(of, &digests.spans));
        }
        if let (Some(expected), Some(found)) = (sha256, digests.sha256)
            && expected != found
        {
            failures.push(blob::mismatch(&path, expected, found));
        }
        FileOutcome { is_checked: true, failures, checksums, ..outcome }
    };
    Ok(Prepared::Hash(hashed, Box::new(finish)))
}

impl PyChecksumRun {
    /// Returns a function that compares tensors as they are read. Each tensor must have a checksum, and its file's
    /// header must have been compared.
    pub fn inspect(&self, wanted: &Bound<'_, PyList>, checkpoint: &PyCheckpoint) -> PyResult<Box<Inspect>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut expected = allocate::vec(wanted.len(), "the checksums of tensors")?;
        for each in wanted {
            let (name, _): (Bound<'_, PyString>, Bound<'_, PyAny>) = each.extract()?;
            let (number, entry) = checkpoint.find(&name)?;
            let path = &self.checkpoint.paths[number];
            let header = self.checkpoint.header(number);
            let of = Subject { path, header, file_bytes: size_of(&self.checkpoint, number) };
            let checksums = known.get(&number).ok_or_else(|| checksums::missing(path));
            let checksum = checksums.and_then(|found| found.expected(of, &entry));
            expected.push((checksum?, number, entry.name.to_owned(), entry.offset));
        }
        let checkpoint = self.checkpoint.clone();
        Ok(Box::new(move |want, bytes| {
            let (expected, number, name, offset) = &expected[want];
            let found = XxHash3_128::oneshot(bytes);
            if found == *expected {
                return Ok(());
            }
            let path = &checkpoint.paths[*number];
            Err(checksums::mismatch(path, Some(name), *offset, (*expected, found)))
        }))
    }
}

#[pymethods]
impl PyChecksumRun {
    /// Starts hashing files, by their numbers.
    #[new]
    fn new(
        py: Python<'_>,
        checkpoint: &PyCheckpoint,
        task: &str,
        files: Vec<usize>,
        threads: Option<usize>,
    ) -> PyResult<Self> {
        fault::reinstall();
        let task = ChecksumTask::from_word(task)?;
        threads.map_or(Ok(()), check_threads)?;
        let checkpoint = checkpoint.shared();
        let total_bytes = files.iter().map(|&number| size_of(&checkpoint, number)).sum();
        let raised = Arc::new(Raised::default());
        let (ours, gate) = (checkpoint.clone(), raised.clone());
        let prepare = move |number| prepare(&ours, task, &gate, number);
        let hashing = py.detach(|| Hashing::start(files, Box::new(prepare), threads))?;
        Ok(Self { hashing: Some(hashing), checkpoint, total_bytes, raised, known: Mutex::default() })
    }

    /// Waits a moment for a file's result. Returns a list with one result or none, and None at the end.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Vec<OutcomeFields>>> {
        let Some(hashing) = &self.hashing else { return Ok(None) };
        let next = py.detach(|| hashing.next(PERIOD));
        let outcome = match self.raised.or(next)? {
            Next::End => return Ok(None),
            Next::NotYet => return Ok(Some(Vec::new())),
            Next::Ready(outcome) => outcome,
        };
        let FileOutcome { number, is_checked, failures, text: to_write, checksums } = outcome;
        let exception = |failure| PyErr::from(failure).into_value(py).into_any();
        let failures = failures.into_iter().map(exception).collect();
        if let Some(checksums) = checksums {
            self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(number, checksums);
        }
        let to_write = to_write.map(|(path, content)| (text(&path), content));
        Ok(Some(vec![(number, is_checked, failures, to_write)]))
    }

    /// Bytes hashed so far.
    #[getter]
    fn done_bytes(&self) -> u64 {
        self.hashing.as_ref().map_or(0, Hashing::done_bytes)
    }

    /// The total size of all files.
    #[getter]
    fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.hashing.as_ref().map(Hashing::close));
    }
}

impl Drop for PyChecksumRun {
    fn drop(&mut self) {
        drop_detached(self.hashing.take());
    }
}
