//! The stream of batches. `loading/loader.py` has the documentation, the defaults and the state.

use std::sync::Arc;

use pyo3::prelude::*;

use super::export::PyExporter;
use super::sampling::PyMixture;
use super::tokens::PyTokenCorpus;
use super::waiting::wait;
use crate::batching::layout::BatchLayout;
use crate::batching::options::{Documents, Marker, Options, Without};
use crate::batching::pipeline::{Batch, Pipeline};
use crate::batching::plan::{Feed, Share, StreamExtent, TokenSource};
use crate::error::Error;
use crate::mapped_file::DropBehind;
use crate::os::fault;
use crate::sampling::order::Order;
use crate::tokens::windows::{Target, Windows};
use crate::widen::Element;

/// The settings of a stream of batches: a dict with these keys.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
struct StreamSettings {
    mixture: Py<PyMixture>,
    sequence_length: u64,
    stride: u64,
    target: String,
    order: String,
    mixing_radius: u64,
    seed: u64,
    rank: u64,
    world_size: u64,
    batch_size: u64,
    /// The position at which the stream ends; None for an endless stream.
    end: Option<u64>,
    drop_last: bool,
    dtype: String,
    documents: bool,
    /// The token that ends each document. If this and the next field are None, the files' records delimit documents.
    end_token: Option<u64>,
    begin_token: Option<u64>,
    vocabulary: Option<u64>,
    threads: Option<usize>,
    lookahead: Option<usize>,
    memory_bytes: Option<u64>,
    drop_behind: Option<String>,
    spare_buffers: u64,
}

impl StreamSettings {
    fn feed(&self, corpora: &[PyRef<'_, PyTokenCorpus>]) -> Result<Feed, Error> {
        let target = Target::from_word(&self.target)?;
        let sources = corpora.iter().map(|corpus| {
            let corpus = corpus.shared();
            let windows = Windows::new(corpus.len(), self.sequence_length, self.stride, target)?;
            Ok(TokenSource { corpus, windows })
        });
        let sources: Result<Vec<_>, Error> = sources.collect();
        let mixture = Some(self.mixture.get().shared());
        let order = Order::from_word(&self.order, self.mixing_radius)?;
        let share = Share { rank: self.rank, world_size: self.world_size, batch_size: self.batch_size };
        let extent = StreamExtent { end: self.end, drop_last: self.drop_last };
        Feed::new(sources?, mixture, order, self.seed, share, extent)
    }

    fn documents(&self) -> Documents {
        match (self.documents, self.end_token, self.begin_token) {
            (false, _, _) => Documents::Ignore,
            (true, Some(token), _) => Documents::Marked(Marker::End(token)),
            (true, None, Some(token)) => Documents::Marked(Marker::Begin(token)),
            (true, None, None) => Documents::Recorded,
        }
    }

    fn options(&self) -> Result<Options, Error> {
        Ok(Options {
            element: Element::from_word(&self.dtype)?,
            documents: self.documents(),
            vocabulary: self.vocabulary,
            threads: self.threads,
            lookahead: self.lookahead,
            memory_bytes: self.memory_bytes,
            drop_behind: self.drop_behind.as_deref().map(DropBehind::from_word).transpose()?,
            spare_buffers: self.spare_buffers,
            without: Without::default(),
        })
    }
}

/// A finished batch.
#[pyclass(name = "PipelineBatch", module = "pagestream._native", frozen, get_all)]
#[derive(Debug)]
pub struct PyPipelineBatch {
    buffer: Py<PyExporter>,
    rows: usize,
    /// Number of samples that the stream has returned once this batch is consumed.
    position_after: u64,
    /// The positions in the batch where documents begin, in tokens; None if documents are ignored.
    documents: Option<Vec<u64>>,
}

#[pyclass(name = "TokenPipeline", module = "pagestream._native", frozen, weakref)]
pub struct PyTokenPipeline {
    pipeline: Pipeline,
    /// Offset of y in a batch's buffer, in bytes; None for batches without targets.
    #[pyo3(get)]
    y_offset: Option<usize>,
    /// Offset of the position ids, or None.
    #[pyo3(get)]
    positions_offset: Option<usize>,
    /// Offset of the loss mask, or None. The mask has one byte per token.
    #[pyo3(get)]
    mask_offset: Option<usize>,
    #[pyo3(get)]
    buffer_bytes: usize,
}

#[pymethods]
impl PyTokenPipeline {
    #[new]
    fn new(
        py: Python<'_>,
        corpora: Vec<PyRef<'_, PyTokenCorpus>>,
        settings: StreamSettings,
        position: u64,
    ) -> PyResult<Self> {
        let (feed, options) = (settings.feed(&corpora)?, settings.options()?);
        let pipeline = py.detach(|| Pipeline::start(feed, options, position))?;
        let BatchLayout { y_offset, positions_offset, mask_offset, buffer_bytes, .. } = pipeline.layout();
        Ok(Self { pipeline, y_offset, positions_offset, mask_offset, buffer_bytes })
    }

    /// The next batch, or None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<PyPipelineBatch>> {
        // Each call on files puts the handler back. The pipeline's threads may have nothing to read now.
        fault::reinstall();
        let Some(batch) = wait(py, |patience| self.pipeline.next(patience))? else { return Ok(None) };
        let Batch { buffer, rows, position_after, documents } = *batch;
        let buffer = Py::new(py, PyExporter::new(Arc::new(buffer)))?;
        Ok(Some(PyPipelineBatch { buffer, rows, position_after, documents }))
    }

    /// Whether `next` would return at once.
    #[getter]
    fn is_ready(&self, py: Python<'_>) -> bool {
        py.detach(|| self.pipeline.is_ready())
    }

    /// Whether the threads run in this process. They do not run in a forked child.
    #[getter]
    fn alive(&self) -> bool {
        self.pipeline.is_of_this_process()
    }

    fn metrics(&self, py: Python<'_>) -> Vec<(&'static str, u64)> {
        py.detach(|| self.pipeline.metrics())
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.pipeline.close());
    }
}

impl Drop for PyTokenPipeline {
    fn drop(&mut self) {
        Python::try_attach(|py| self.close(py));
    }
}
