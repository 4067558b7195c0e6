//! `TensorStream`: reads tensors of a checkpoint ahead. The Python package `weights/` has the documentation.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::checkpoint::PyCheckpoint;
use super::checksums::PyChecksumRun;
use super::error::Raised;
use super::export::{PyExporter, drop_detached, landed_object};
use super::stored_tensor::ByteSelection;
use super::waiting::wait;
use crate::allocate;
use crate::fetch::crew::{Limits, check_threads};
use crate::os::fault;
use crate::os::process::limits;
use crate::streaming::options::{CacheUse, READERS, StreamOptions, memory_bytes_for};
use crate::streaming::plan::{PLAN, Want};
use crate::streaming::strategy::{Choice, Strategy, Surroundings, choose};
use crate::warming::continued::ContinuedStream;

/// A tensor by its name, and a selection; `None` selects all of it.
type WantedTensor<'py> = (Bound<'py, PyString>, Option<ByteSelection>);

#[pyclass(name = "TensorStream", module = "pagestream._native", frozen)]
pub struct PyTensorStream {
    /// `None` only during `drop`.
    stream: Option<ContinuedStream>,
}

/// Returns the limits for the number of threads that a caller allows.
pub fn readers_of(threads: Option<usize>) -> PyResult<Limits> {
    threads.map_or(Ok(()), check_threads)?;
    Ok(threads.map_or(READERS, |given| Limits { first: given, most: given }))
}

/// Returns the places of the tensors in a list of [`WantedTensor`]s.
pub fn wants_of(checkpoint: &PyCheckpoint, wanted: &Bound<'_, PyList>) -> PyResult<Vec<Want>> {
    let mut wants = allocate::vec(wanted.len(), PLAN)?;
    for each in wanted {
        let (name, part): WantedTensor<'_> = each.extract()?;
        let (file, offset, len) = checkpoint.byte_range(&name)?;
        let selection = part.map(|part| part.checked(len)).transpose()?;
        wants.push(Want { file, offset, len, selection });
    }
    Ok(wants)
}

#[pymethods]
impl PyTensorStream {
    #[new]
    fn new(
        py: Python<'_>,
        checkpoint: &PyCheckpoint,
        wanted: &Bound<'_, PyList>,
        memory_bytes: Option<u64>,
        threads: Option<usize>,
        checks: Option<&PyChecksumRun>,
        cache_use: &str,
    ) -> PyResult<Self> {
        let cache = CacheUse::from_word(cache_use)?;
        let readers = readers_of(threads)?;
        let inspect = checks.map(|run| run.inspect(wanted, checkpoint)).transpose()?;
        let wants = wants_of(checkpoint, wanted)?;
        let files = checkpoint.shared();
        // A warming does not compare tensors that it reads.
        let warming = checkpoint.warm_slot().warming().filter(|_| inspect.is_none());
        let stream = py.detach(|| {
            let memory_bytes = memory_bytes.unwrap_or_else(|| memory_bytes_for(&wants));
            let options = StreamOptions { memory_bytes, largest_ahead_bytes: memory_bytes, readers, cache };
            let open = Arc::new(move |number| files.file(number)?.file.opened());
            ContinuedStream::start(wants, open, warming, inspect, options)
        })?;
        Ok(Self { stream: Some(stream) })
    }

    /// Returns the strategy to use, and the reason.
    #[staticmethod]
    fn choose(
        py: Python<'_>,
        checkpoint: &PyCheckpoint,
        wanted: &Bound<'_, PyList>,
        strategy: &str,
        local_processes: u64,
        may_try: bool,
    ) -> PyResult<(&'static str, String)> {
        let asked = Strategy::from_word(strategy)?;
        let wants = wants_of(checkpoint, wanted)?;
        let files = checkpoint.shared();
        let open = |number| files.file(number)?.file.opened();
        let is_warmed = checkpoint.warm_slot().has_filled_cache();
        let raised = Raised::default();
        let mut keep_going = || raised.call(|py| -> PyResult<()> { py.check_signals() }).is_ok();
        let chosen = py.detach(|| {
            let available_memory_bytes = limits::available_memory_bytes();
            let around = Surroundings {
                available_memory_bytes,
                local_processes,
                is_warmed,
                may_try,
                seed: RandomState::new().hash_one(strategy),
            };
            choose(asked, &wants, open, around, &mut keep_going)
        });
        let Choice { strategy, reason } = raised.or(chosen)?;
        Ok((strategy.word(), reason))
    }

    /// Returns the number of the next tensor in the order of the wants, and memory with its bytes. None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(usize, Py<PyExporter>)>> {
        fault::reinstall();
        let Some(stream) = &self.stream else { return Ok(None) };
        let next = wait(py, |patience| stream.next(patience))?;
        next.map(|(number, landed)| Ok((number, landed_object(py, landed, true)?.unbind()))).transpose()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.stream.as_ref().map(ContinuedStream::close));
    }
}

impl Drop for PyTensorStream {
    fn drop(&mut self) {
        drop_detached(self.stream.take());
    }
}
