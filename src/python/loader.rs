//! The stream of batches. `loader.py` has the documentation, the defaults and the state.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use super::export::batch_object;
use super::tokens::PyTokenCorpus;
use crate::batching::layout::BatchLayout;
use crate::batching::options::{Options, Without};
use crate::batching::pipeline::{Next, Pipeline};
use crate::batching::plan::{Feed, Share, StreamExtent, TokenSource};
use crate::error::Error;
use crate::mapped_file::DropBehind;
use crate::os::fault;
use crate::sampling::mixture::{Exhausted, Mixture};
use crate::sampling::order::Order;
use crate::tokens::windows::{Target, Windows};
use crate::widen::Element;

/// How long a wait for a batch goes on before Ctrl-C is looked for.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

#[pyclass(name = "TokenPipeline", module = "pagestream._native", frozen, weakref)]
pub struct PyTokenPipeline {
    /// Taken by `close`. Locked only while attached to the interpreter and never across a wait, so that
    /// a fork finds it free.
    pipeline: Mutex<Option<Arc<Pipeline>>>,
    layout: BatchLayout,
    epoch_samples: Option<u64>,
}

/// (buffer, rows, position after, document starts).
type BatchFacts<'py> = (Bound<'py, PyAny>, usize, u64, Option<Vec<u64>>);

#[pymethods]
impl PyTokenPipeline {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "a loader has that many settings; Python names them")]
    #[pyo3(signature = (corpora, weights, exhausted, *, sequence_length, stride, target, order, mixing_radius,
        seed, rank, world_size, batch_size, epochs, drop_last, position, dtype, documents, threads, lookahead,
        memory_bytes, drop_behind))]
    fn new(
        py: Python<'_>,
        corpora: Vec<PyRef<'_, PyTokenCorpus>>,
        weights: Option<Vec<u64>>,
        exhausted: &str,
        sequence_length: u64,
        stride: u64,
        target: &str,
        order: &str,
        mixing_radius: u64,
        seed: u64,
        rank: u64,
        world_size: u64,
        batch_size: u64,
        epochs: Option<u64>,
        drop_last: bool,
        position: u64,
        dtype: &str,
        documents: bool,
        threads: Option<usize>,
        lookahead: Option<usize>,
        memory_bytes: Option<u64>,
        drop_behind: Option<&str>,
    ) -> PyResult<Self> {
        let target = Target::from_word(target)?;
        let sources = corpora.iter().map(|corpus| {
            let corpus = corpus.shared();
            let windows = Windows::new(corpus.len(), sequence_length, stride, target)?;
            Ok(TokenSource { corpus, windows })
        });
        let sources: Result<Vec<_>, Error> = sources.collect();
        let mixture = match weights {
            Some(weights) => Some(Mixture::new(&weights, Exhausted::from_word(exhausted)?)?),
            None => None,
        };
        let order = Order::from_word(order, mixing_radius)?;
        let share = Share { rank, world_size, batch_size };
        let extent = StreamExtent { epochs, drop_last };
        let options = Options {
            element: Element::from_word(dtype)?,
            documents,
            threads,
            lookahead,
            memory_bytes,
            drop_behind: drop_behind.map(drop_behind_from).transpose()?,
            without: Without::default(),
        };
        let feed = Feed::new(sources?, mixture.as_ref(), order, seed, share, extent)?;
        let epoch_samples = feed.epoch_samples();
        let pipeline = py.detach(|| Pipeline::start(feed, options, position))?;
        let layout = pipeline.layout();
        Ok(Self { pipeline: Mutex::new(Some(Arc::new(pipeline))), layout, epoch_samples })
    }

    /// The next batch, or None at the end.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<BatchFacts<'py>>> {
        // Each call on files does; threads of the pipeline may have nothing to read now.
        fault::reinstall();
        let Some(pipeline) = self.lock().clone() else {
            return Err(Error::argument("the loader is closed").into());
        };
        loop {
            let next = py.detach(|| pipeline.next(SIGNALS_EVERY))?;
            match next {
                Next::Batch(batch) => {
                    let buffer = batch_object(py, batch.buffer)?;
                    return Ok(Some((buffer, batch.rows, batch.position_after, batch.documents)));
                }
                Next::End => return Ok(None),
                Next::NotYet => py.check_signals()?,
            }
        }
    }

    /// Whether `next` would answer at once.
    #[getter]
    fn is_ready(&self, py: Python<'_>) -> bool {
        let pipeline = self.lock().clone();
        py.detach(|| pipeline.is_none_or(|pipeline| pipeline.is_ready()))
    }

    /// (row bytes, offset of y, bytes of a row of position ids, their offset, bytes of the buffer).
    #[getter]
    fn layout(&self) -> (usize, Option<usize>, usize, Option<usize>, usize) {
        let layout = self.layout;
        (
            layout.row_bytes,
            layout.y_offset,
            layout.position_row_bytes,
            layout.positions_offset,
            layout.buffer_bytes,
        )
    }

    /// Samples of one epoch over all ranks; None where there is no such thing.
    #[getter]
    fn epoch_samples(&self) -> Option<u64> {
        self.epoch_samples
    }

    /// Whether the threads run in this process, and not in the one that it was forked from.
    #[getter]
    fn alive(&self) -> bool {
        self.lock().as_ref().is_some_and(|pipeline| pipeline.is_of_this_process())
    }

    fn metrics(&self, py: Python<'_>) -> Vec<(&'static str, u64)> {
        let pipeline = self.lock().clone();
        py.detach(|| pipeline.map_or_else(Vec::new, |pipeline| pipeline.metrics()))
    }

    fn close(&self, py: Python<'_>) {
        let pipeline = self.lock().clone();
        py.detach(|| {
            if let Some(pipeline) = pipeline {
                pipeline.close();
            }
        });
    }
}

impl Drop for PyTokenPipeline {
    fn drop(&mut self) {
        Python::try_attach(|py| self.close(py));
    }
}

impl PyTokenPipeline {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Pipeline>>> {
        self.pipeline.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn drop_behind_from(word: &str) -> Result<DropBehind, Error> {
    match word {
        "resident" => Ok(DropBehind::Resident),
        "cache" => Ok(DropBehind::Cache),
        _ => Err(Error::argument(format!("drop_behind is None, \"resident\" or \"cache\", not {word:?}"))),
    }
}
