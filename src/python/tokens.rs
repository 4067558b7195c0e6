//! Token corpora. `tokens/corpus.py` wraps them, and has the documentation.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyTuple};

use super::error::{Raised, text};
use super::export::{self, Access, PyExporter};
use super::files::{audit_open, path_of, weakest_reason};
use super::writable::WritableBuffer;
use crate::batching::assemble::assemble;
use crate::error::Error;
use crate::mapped_file::{Facts, Mode, RequestedMode};
use crate::natural;
use crate::tokens::corpus::{Shard, TokenCorpus};
use crate::tokens::format::layout::{Format, Opener, TOKEN_DTYPES, token_dtype_from_name, token_dtype_name};
use crate::tokens::format::{llmc, megatron};
use crate::tokens::windows::{Target, Windows};
use crate::widen::Element;

#[pyclass(name = "TokenCorpus", module = "pagestream._native", weakref, frozen)]
#[derive(Debug)]
pub struct PyTokenCorpus {
    corpus: Arc<TokenCorpus>,
}

/// The facts of a shard; Python receives them as a dict.
#[derive(IntoPyObject)]
struct ShardFacts {
    path: OsString,
    format: &'static str,
    tokens: u64,
    start: u64,
    mode: &'static str,
    reason: Option<String>,
    is_view: bool,
    file_start: u64,
    file_tokens: u64,
}

#[pymethods]
impl PyTokenCorpus {
    #[new]
    fn new(
        py: Python<'_>,
        paths: Vec<Vec<u8>>,
        dtype: Option<&str>,
        format: Option<&str>,
        mode: &str,
    ) -> PyResult<Self> {
        let mode = RequestedMode::from_word(mode)?;
        let dtype = dtype.map(token_dtype_from_name).transpose()?;
        let format = format.map(Format::from_word).transpose()?;
        let paths: Vec<PathBuf> =
            paths.iter().map(|path| path_of(path).map(PathBuf::from)).collect::<PyResult<_>>()?;
        paths.iter().try_for_each(|path| audit_open(py, path, mode))?;
        // Threads that attach to the interpreter wait for each other, so they only ask about side files.
        let asked: HashSet<_> = paths.iter().map(PathBuf::as_path).collect();
        let raised = Raised::default();
        let gate = |path: &Path| {
            if asked.contains(path) { Ok(()) } else { raised.call(|py| audit_open(py, path, mode)) }
        };
        let how = Opener { mode, gate: &gate };
        let corpus = py.detach(|| TokenCorpus::open(&paths, dtype, format, how));
        Ok(Self { corpus: Arc::new(raised.or(corpus)?) })
    }

    /// Returns tokens `[start, stop)` as a corpus over the same open files.
    fn part(&self, py: Python<'_>, start: u64, stop: u64) -> PyResult<Self> {
        Ok(Self { corpus: Arc::new(py.detach(|| self.corpus.part(start, stop))?) })
    }

    #[getter]
    fn tokens(&self) -> u64 {
        self.corpus.len()
    }

    #[getter]
    fn dtype_name(&self) -> &'static str {
        token_dtype_name(self.corpus.dtype)
    }

    /// The facts of each shard, in order.
    fn shards(&self) -> Vec<ShardFacts> {
        let facts = |(index, shard): (usize, &Shard)| {
            let Facts { mode, reason, .. } = self.corpus.facts(index);
            ShardFacts {
                path: text(&shard.path),
                format: shard.layout.format.word(),
                tokens: shard.layout.tokens,
                start: shard.start,
                mode: mode.word(),
                reason: reason.clone(),
                is_view: shard.is_view(),
                file_start: shard.file_start,
                file_tokens: shard.file_tokens,
            }
        };
        self.corpus.shards.iter().enumerate().map(facts).collect()
    }

    /// The weakest mode in use.
    #[getter]
    fn mode(&self) -> &'static str {
        let weakest = self.corpus.weakest();
        weakest.map_or(Mode::Shared, |(shard, _)| self.corpus.facts(shard).mode).word()
    }

    /// Why no better mode is in use; None if the first choice is.
    #[getter]
    fn reason(&self) -> Option<OsString> {
        let (shard, count) = self.corpus.weakest()?;
        let reason = self.corpus.facts(shard).reason.as_deref()?;
        let path = &self.corpus.shards[shard].path;
        Some(weakest_reason(reason, (self.corpus.shards.len() > 1).then_some(path.as_path()), count))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.corpus.is_closed()
    }

    /// Returns a buffer over tokens of a mapped shard, or None.
    fn view<'py>(&self, py: Python<'py>, start: u64, stop: u64) -> PyResult<Option<Bound<'py, PyExporter>>> {
        let view = py.detach(|| self.corpus.view(start, stop))?;
        view.map(|view| export::view_object(py, view, Access::ReadOnly)).transpose()
    }

    /// Returns a number for the data; see `TokenCorpus::fingerprint`.
    fn fingerprint(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| self.corpus.fingerprint())?)
    }

    /// The number of documents; None if the format does not record them.
    #[getter]
    fn document_count(&self) -> Option<u64> {
        self.corpus.document_count
    }

    /// Checks every entry of the files that record documents.
    fn check_documents(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.corpus.check_documents())?)
    }

    /// Returns token files whose index lists only their beginning: the path, the listed tokens, all tokens.
    fn cut_short(&self) -> Vec<(OsString, u64, u64)> {
        let cut_short =
            self.corpus.cut_short().map(|(shard, tokens)| (text(&shard.path), shard.layout.tokens, tokens));
        cut_short.collect()
    }

    /// Returns indexes in which a sequence begins inside the previous one: the path, the number of the sequence, its
    /// start byte, and the start and end byte of the previous one.
    fn overlaps(&self) -> Vec<(OsString, u64, u64, (u64, u64))> {
        let overlaps = self
            .corpus
            .overlaps()
            .map(|(path, overlap)| (text(path), overlap.sequence, overlap.place_bytes, overlap.front_bytes));
        overlaps.collect()
    }

    /// Fills `out`, an array of uint64, with the starts of documents from number `first` on.
    fn document_bounds(&self, py: Python<'_>, first: u64, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut out = WritableBuffer::of(out)?;
        let bytes = out.len();
        out.fill(py, bytes, |offset, chunk| {
            let mut starts = vec![0; chunk.len() / 8];
            self.corpus.document_bounds(first.saturating_add(offset as u64 / 8), &mut starts)?;
            for (place, start) in chunk.arrays().zip(starts) {
                place.write(start.to_ne_bytes());
            }
            Ok::<_, Error>(())
        })
    }

    /// The number of open files.
    #[getter]
    fn open_count(&self) -> usize {
        self.corpus.open_count()
    }

    /// Fills a buffer, whose size must match these tokens.
    fn read_into(&self, py: Python<'_>, start: u64, stop: u64, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut out = WritableBuffer::of(out)?;
        let item_bytes = self.corpus.item_bytes();
        let length = stop.saturating_sub(start).saturating_mul(item_bytes);
        out.fill(py, length as usize, |offset, chunk| {
            // Chunk sizes are powers of two, so each chunk holds whole tokens.
            let first = start + offset as u64 / item_bytes;
            self.corpus.read_into(first, first + chunk.len() as u64 / item_bytes, chunk)
        })
    }

    /// The number of windows.
    fn windows(&self, sequence_length: u64, stride: u64, target: &str) -> PyResult<u64> {
        Ok(self.windows_of(sequence_length, stride, target)?.count())
    }

    /// Fills x and y, each `[len(indices), sequence_length]`, with the windows of these numbers.
    #[expect(clippy::too_many_arguments, reason = "one call a batch, with everything that it takes")]
    fn assemble(
        &self,
        py: Python<'_>,
        indices: Vec<u64>,
        sequence_length: u64,
        stride: u64,
        target: &str,
        dtype: &str,
        vocabulary: Option<u64>,
        x: &Bound<'_, PyAny>,
        y: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let windows = self.windows_of(sequence_length, stride, target)?;
        let element = Element::from_word(dtype)?;
        let mut x = WritableBuffer::of(x)?;
        let mut y = y.map(WritableBuffer::of).transpose()?;
        if y.as_ref().is_some_and(|y| x.overlaps(y)) {
            return Err(Error::argument("x and y overlap; give each memory of its own").into());
        }
        let (x, y) = (x.all()?, y.as_mut().map(WritableBuffer::all).transpose()?);
        Ok(py.detach(|| assemble(&self.corpus, &windows, &indices, element, vocabulary, x, y))?)
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.corpus.check())?)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.corpus.close());
    }
}

impl Drop for PyTokenCorpus {
    fn drop(&mut self) {
        // A loader that still reads from the corpus keeps it open.
        if Arc::strong_count(&self.corpus) == 1 {
            Python::try_attach(|py| py.detach(|| self.corpus.close()));
        }
    }
}

impl PyTokenCorpus {
    pub(super) fn shared(&self) -> Arc<TokenCorpus> {
        self.corpus.clone()
    }

    fn windows_of(&self, sequence_length: u64, stride: u64, target: &str) -> PyResult<Windows> {
        let target = Target::from_word(target)?;
        Ok(Windows::new(self.corpus.len(), sequence_length, stride, target)?)
    }
}

/// Returns the names in natural order.
#[pyfunction]
pub fn natural_sorted(mut names: Vec<OsString>) -> Vec<OsString> {
    names.sort_by(|a, b| natural::compare(a.as_bytes(), b.as_bytes()));
    names
}

/// Adds the constants of the formats, which the Python writers use.
pub fn add_constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let kinds =
        llmc::KINDS.iter().map(|&(magic, version, dtype)| (token_dtype_name(dtype), (magic, version)));
    let codes = megatron::CODES.iter().map(|&(code, dtype)| (token_dtype_name(dtype), code));
    module.add("LLMC_KINDS", kinds.into_py_dict(module.py())?)?;
    module.add("MEGATRON_CODES", codes.into_py_dict(module.py())?)?;
    module.add("TOKEN_DTYPES", PyTuple::new(module.py(), TOKEN_DTYPES.iter().map(|known| known.0))?)
}
