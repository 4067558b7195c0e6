//! `TensorStream`: tensors of a checkpoint that are read ahead. The Python package `weights/` has the documentation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::checkpoint::PyCheckpoint;
use super::checksums::PyChecksumRun;
use super::error::Raised;
use super::export::{PyExporter, drop_detached, landed_object};
use super::stored_tensor::ByteSelection;
use crate::error::Error;
use crate::fetch::crew::{Limits, PERIOD, check_threads};
use crate::os::fault;
use crate::os::process::limits;
use crate::streaming::engine::{Landed, NextTensor, Stream};
use crate::streaming::options::{CacheUse, READERS, StreamOptions};
use crate::streaming::pieces::Files;
use crate::streaming::plan::Want;
use crate::streaming::strategy::{Choice, Strategy, Surroundings, choose};
use crate::streaming::warm::WarmLead;
use crate::weights::checkpoint::Checkpoint;

/// A tensor by its name; `None` for all of it.
pub type WantedTensor<'py> = (Bound<'py, PyString>, Option<ByteSelection>);

#[pyclass(name = "TensorStream", module = "pagestream._native", frozen)]
pub struct PyTensorStream {
    /// Reads what `lead` does not have. `None` only during `drop`.
    stream: Option<Stream>,
    /// Of each want, in order, the number under which it was claimed from the lead.
    claims: Vec<Option<usize>>,
    lead: Option<Arc<WarmLead>>,
    /// The want that [`Self::next`] returns.
    next: AtomicUsize,
    wants: Vec<Want>,
    checkpoint: Arc<Checkpoint>,
}

/// Returns the threads that a caller allows.
fn readers_of(threads: Option<usize>) -> PyResult<Limits> {
    threads.map_or(Ok(()), check_threads)?;
    Ok(threads.map_or(READERS, |given| Limits { first: given, most: given }))
}

pub fn wants_of(checkpoint: &PyCheckpoint, wanted: Vec<WantedTensor<'_>>) -> PyResult<Vec<Want>> {
    let want = |(name, part): WantedTensor<'_>| {
        let (file, offset, len) = checkpoint.byte_range(&name)?;
        let selection = part.map(|part| part.checked(len)).transpose()?;
        Ok(Want { file, offset, len, selection })
    };
    wanted.into_iter().map(want).collect()
}

#[pymethods]
impl PyTensorStream {
    #[new]
    fn new(
        py: Python<'_>,
        checkpoint: &PyCheckpoint,
        wanted: Vec<WantedTensor<'_>>,
        memory_bytes: Option<u64>,
        threads: Option<usize>,
        checks: Option<&PyChecksumRun>,
        cache_use: &str,
    ) -> PyResult<Self> {
        let cache = CacheUse::from_word(cache_use)?;
        let readers = readers_of(threads)?;
        let names: Vec<_> = wanted.iter().map(|(name, _)| name.clone()).collect();
        let inspect = checks.map(|run| run.inspect(&names, checkpoint)).transpose()?;
        let wants = wants_of(checkpoint, wanted)?;
        let files = checkpoint.shared();
        // What was read ahead was not compared.
        let lead = checkpoint.warm_slot().lead().filter(|_| inspect.is_none());
        let (claims, stream) = py.detach(|| {
            let memory_bytes = memory_bytes.unwrap_or_else(|| StreamOptions::default().memory_bytes);
            let options = StreamOptions { memory_bytes, readers, cache };
            let claim = |want: &Want| lead.as_ref()?.claim_or_leave(want.file, want.offset, want.part());
            let claims: Vec<_> = wants.iter().map(claim).collect();
            let is_left = |(_, claim): &(&Want, &Option<usize>)| claim.is_none();
            let left: Vec<_> =
                wants.iter().zip(&claims).filter(is_left).map(|(want, _)| want.clone()).collect();
            Ok::<_, Error>((claims, Stream::start(&left, opener(files.clone()), inspect, options)?))
        })?;
        Ok(Self { stream: Some(stream), claims, lead, next: AtomicUsize::new(0), wants, checkpoint: files })
    }

    /// Returns the strategy to use, and why.
    #[staticmethod]
    fn choose(
        py: Python<'_>,
        checkpoint: &PyCheckpoint,
        wanted: Vec<WantedTensor<'_>>,
        strategy: &str,
        local_processes: u64,
        seed: u64,
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
            let around = Surroundings { available_memory_bytes, local_processes, is_warmed, seed };
            choose(asked, &wants, open, around, &mut keep_going)
        });
        let Choice { strategy, reason } = raised.or(chosen)?;
        Ok((strategy.word(), reason))
    }

    /// Returns the number of the next tensor in the order of the wants, and memory with its bytes; None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(usize, Py<PyExporter>)>> {
        fault::reinstall();
        let number = self.next.load(Ordering::Relaxed);
        let (Some(stream), Some(&claim)) = (&self.stream, self.claims.get(number)) else { return Ok(None) };
        let landed = match claim {
            Some(claim) => self.claimed(py, number, claim)?,
            None => awaited(py, stream)?,
        };
        let Some(landed) = landed else { return Ok(None) };
        self.next.store(number + 1, Ordering::Relaxed);
        Ok(Some((number, landed_object(py, landed, true)?.unbind())))
    }

    fn close(&self, py: Python<'_>) {
        let left = self.next.swap(self.claims.len(), Ordering::Relaxed);
        if let Some(lead) = &self.lead {
            self.claims[left..].iter().flatten().for_each(|&claim| lead.release(claim));
        }
        py.detach(|| self.stream.as_ref().map(Stream::close));
    }
}

impl PyTensorStream {
    /// Waits for a tensor that was claimed from the lead; reads it if the lead has ended.
    fn claimed(&self, py: Python<'_>, number: usize, claim: usize) -> PyResult<Option<Landed>> {
        let Some(lead) = &self.lead else { return Ok(None) };
        loop {
            match py.detach(|| lead.take(claim, PERIOD)) {
                NextTensor::Landed(landed) => return Ok(Some(landed)),
                NextTensor::NotYet => py.check_signals()?,
                NextTensor::End => break,
            }
        }
        let (want, open) = (std::slice::from_ref(&self.wants[number]), opener(self.checkpoint.clone()));
        let alone = py.detach(|| Stream::start(want, open, None, StreamOptions::default()))?;
        awaited(py, &alone)
    }
}

/// Waits for the next tensor of a stream.
fn awaited(py: Python<'_>, stream: &Stream) -> PyResult<Option<Landed>> {
    loop {
        match py.detach(|| stream.next(PERIOD))? {
            NextTensor::Landed(landed) => return Ok(Some(landed)),
            NextTensor::End => return Ok(None),
            NextTensor::NotYet => py.check_signals()?,
        }
    }
}

fn opener(checkpoint: Arc<Checkpoint>) -> Box<Files> {
    Box::new(move |number| checkpoint.file(number)?.file.opened())
}

impl Drop for PyTensorStream {
    fn drop(&mut self) {
        drop_detached(self.stream.take());
    }
}
