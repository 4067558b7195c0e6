//! Rows of batches: tokens of a corpus, copied and widened into memory.

use std::sync::Arc;

use crate::allocate;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::{Opened, can_copy_from_mappings};
use crate::os::memory::Uninit;
use crate::tokens::corpus::TokenCorpus;
use crate::widen::{self, Beyond, Element};

use super::layout::row_bytes;
use super::options::Marker;

/// Bytes of a mapping copied and widened per step. They stay in the first-level cache.
const BLOCK_BYTES: u64 = 8 << 10;

/// Bytes of the next row to prefetch. After them, the processor has detected the direction.
const PREFETCHED_BYTES: u64 = 2 << 10;

/// Fills rows of batches, one at a time. It remembers the last run, which makes the next row cheaper.
///
/// The caller fills several rows in one thread, then calls [`RowCopier::verify`]. Only then are they good.
#[derive(Debug)]
pub struct RowCopier {
    scratch: Vec<u8>,
    reader: TokenCopier,
    /// Number of valid ids; `None` allows any id.
    vocabulary: Option<u64>,
    marker: Option<Marker>,
    /// The borders that the marker shows in the last row: positions where a document begins, in tokens from the row's
    /// first token. The first token is no border, but the position behind the last token of x may be one.
    pub(super) borders: Vec<u64>,
    /// Bytes of rows that were read rather than copied from a mapping.
    pub(super) read_bytes: u64,
}

impl RowCopier {
    /// Creates a copier that rejects ids at or beyond `vocabulary`, and finds borders of documents by a `marker`.
    pub fn new(corpus: Arc<TokenCorpus>, vocabulary: Option<u64>, marker: Option<Marker>) -> Self {
        let reader = TokenCopier { corpus, touched: Vec::new(), last: None, guarded: None };
        Self { scratch: Vec::new(), reader, vocabulary, marker, borders: Vec::new(), read_bytes: 0 }
    }

    /// Writes the tokens `start..stop` to `x_row`. With targets, `x_row` lacks the last token, and `y_row` lacks the
    /// first.
    ///
    /// After an error the rows since the last [`Self::verify`] are undefined, and the copier forgets their files.
    pub fn row(
        &mut self,
        (start, stop): (u64, u64),
        element: Element,
        x_row: Uninit<'_>,
        y_row: Option<Uninit<'_>>,
    ) -> Result<()> {
        let corpus = &self.reader.corpus;
        let (dtype, item_bytes, targets) = (corpus.dtype, corpus.item_bytes(), u64::from(y_row.is_some()));
        let length = stop.checked_sub(start).and_then(|span| span.checked_sub(targets));
        let row_bytes = length.and_then(|length| row_bytes(length, dtype, element));
        if row_bytes != Some(x_row.len()) || y_row.as_ref().is_some_and(|y_row| y_row.len() != x_row.len()) {
            return Err(Error::argument("the row is not of the window's size"));
        }
        corpus.check_range(start, stop)?;
        let window = (start, stop - targets);
        // Only the next token shows whether the last token of x ends a document.
        let looks_behind =
            matches!(self.marker, Some(Marker::Begin(_))) && targets == 0 && stop < corpus.len();
        let source_stop = stop + u64::from(looks_behind);
        self.borders.clear();
        let done = self.reader.is_mapped(window).and_then(|is_mapped| {
            let block_tokens = if is_mapped {
                BLOCK_BYTES / item_bytes
            } else {
                // A read is a system call, perhaps a request to a server, so make one for the whole row.
                self.read_bytes += (source_stop - start) * item_bytes;
                window.1 - window.0
            };
            // Ids are checked in the scratch block.
            let is_copied = element.is_copy(dtype) && self.vocabulary.is_none() && self.marker.is_none();
            if is_copied && (is_mapped || y_row.is_none()) {
                self.copy_row(window, block_tokens, x_row, y_row)
            } else {
                self.widen_row((start, window.1, source_stop), block_tokens, element, x_row, y_row)
            }
        });
        if done.is_err() {
            self.reader.forget();
        }
        done
    }

    /// Prefetches the row that begins with token `start` into the processor's cache.
    pub fn prefetch(&self, start: u64) {
        self.reader.prefetch(start);
    }

    /// Checks each file that was read since the last call. A file that was truncated or rewritten meanwhile is an
    /// error. Returns the files' indices, for [`TokenCorpus::verify_now`] at the end of the batch.
    pub fn verify(&mut self) -> Result<Vec<usize>> {
        let touched = self.take_touched();
        self.reader.corpus.verify(touched.iter().copied())?;
        Ok(touched)
    }

    /// Returns the shards that were read since the last call, without checking them.
    pub(super) fn take_touched(&mut self) -> Vec<usize> {
        let mut touched = self.reader.forget();
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// Copies tokens to x and to y. The second copy comes from the first-level cache.
    fn copy_row(
        &mut self,
        (start, stop): (u64, u64),
        block_tokens: u64,
        mut x: Uninit<'_>,
        mut y: Option<Uninit<'_>>,
    ) -> Result<()> {
        let item = self.reader.corpus.item_bytes() as usize;
        for (first, last) in blocks(start, stop, block_tokens) {
            let place = (first - start) as usize * item..(last - start) as usize * item;
            self.reader.read((first, last), x.range(place.clone()))?;
            if let Some(y) = &mut y {
                self.reader.read((first + 1, last + 1), y.range(place))?;
            }
        }
        Ok(())
    }

    /// Copies tokens to a scratch block, and widens them from there to x and y. It reads the tokens up to
    /// `source_stop`; the tokens of x end at `stop`.
    fn widen_row(
        &mut self,
        (start, stop, source_stop): (u64, u64, u64),
        block_tokens: u64,
        element: Element,
        mut x: Uninit<'_>,
        mut y: Option<Uninit<'_>>,
    ) -> Result<()> {
        let (dtype, item) = (self.reader.corpus.dtype, self.reader.corpus.item_bytes() as usize);
        let element_bytes = element.bytes(dtype) as usize;
        for (first, last) in blocks(start, stop, block_tokens) {
            let place = (first - start) as usize * element_bytes..(last - start) as usize * element_bytes;
            let window_stop = last + u64::from(y.is_some());
            let read_stop = if last < stop { window_stop } else { source_stop };
            let read_bytes = (read_stop - first) as usize * item;
            if self.scratch.len() < read_bytes {
                self.scratch.resize(read_bytes, 0);
            }
            let read = &mut self.scratch[..read_bytes];
            self.reader.read((first, read_stop), Uninit::of(read))?;
            if last < stop {
                self.reader.prefetch(read_stop);
            }
            if let Some(marker) = self.marker {
                // The first token of the next block is searched together with that block.
                let searched_stop = if last < stop { last } else { read_stop };
                let searched = &read[..(searched_stop - first) as usize * item];
                note_borders(&mut self.borders, searched, dtype, marker, (first - start, stop - start))?;
            }
            let source = &read[..(window_stop - first) as usize * item];
            if let Some(vocabulary) = self.vocabulary
                && let Some(found) = widen::first_beyond(source, dtype, vocabulary)
            {
                return Err(beyond_vocabulary(&self.reader.corpus, first, found, vocabulary));
            }
            let x = x.range(place.clone());
            let done = match &mut y {
                Some(y) => widen::widen_window(source, dtype, element, x, y.range(place)),
                None => widen::widen(source, dtype, element, x),
            };
            done.map_err(|refused| {
                does_not_fit(&self.reader.corpus, first + refused.position as u64, element)
            })?;
        }
        Ok(())
    }
}

/// Adds the borders that a marker shows in `source`, which begins with token `first` of a row of `tokens` tokens.
fn note_borders(
    borders: &mut Vec<u64>,
    source: &[u8],
    dtype: Dtype,
    marker: Marker,
    (first, tokens): (u64, u64),
) -> Result<()> {
    let (id, distance) = match marker {
        Marker::End(id) => (id, 1),
        Marker::Begin(id) => (id, 0),
    };
    let item = (dtype.bits() / 8) as usize;
    let mut searched = 0;
    while let Some(found) = widen::first_equal(&source[searched * item..], dtype, id) {
        let border = first + (searched + found) as u64 + distance;
        if (1..=tokens).contains(&border) {
            allocate::push(borders, border, "the borders of documents")?;
        }
        searched += found + 1;
    }
    Ok(())
}

/// Splits the range `start..stop` into blocks.
fn blocks(start: u64, stop: u64, block_tokens: u64) -> impl Iterator<Item = (u64, u64)> {
    let firsts = std::iter::successors(Some(start), move |first| first.checked_add(block_tokens));
    firsts
        .take_while(move |first| *first < stop)
        .map(move |first| (first, stop.min(first.saturating_add(block_tokens))))
}

/// Copies tokens from a corpus, and records which files it read.
#[derive(Debug)]
struct TokenCopier {
    corpus: Arc<TokenCorpus>,
    touched: Vec<usize>,
    last: Option<OpenRun>,
    /// The result of [`can_copy_from_mappings`] in this thread, known after the first mapping.
    guarded: Option<bool>,
}

/// The last run, usually a whole shard. Looking it up and getting its file takes longer than a short copy.
#[derive(Debug)]
struct OpenRun {
    start: u64,
    stop: u64,
    /// The offset of its first byte in the file.
    offset_bytes: u64,
    opened: Arc<Opened>,
}

impl TokenCopier {
    /// Returns the files that were read since the last call. The next reads look their files up again.
    fn forget(&mut self) -> Vec<usize> {
        (self.last, self.guarded) = (None, None);
        std::mem::take(&mut self.touched)
    }

    /// Returns whether the first file of a window is copied from a mapping. The caller calls this before
    /// [`Self::read`].
    fn is_mapped(&mut self, (start, stop): (u64, u64)) -> Result<bool> {
        if start == stop {
            return Ok(true);
        }
        let is_mapped = self.run(start)?.opened.region.is_some();
        Ok(is_mapped && *self.guarded.get_or_insert_with(can_copy_from_mappings))
    }

    /// Prefetches the tokens from `start` on, if they belong to the last run.
    fn prefetch(&self, start: u64) {
        let Some(run) = self.last.as_ref().filter(|run| (run.start..run.stop).contains(&start)) else {
            return;
        };
        let offset = run.offset_bytes + (start - run.start) * self.corpus.item_bytes();
        run.opened.prefetch(offset, PREFETCHED_BYTES);
    }

    /// Fills `out` with tokens from `start` on.
    fn read(&mut self, (start, stop): (u64, u64), mut out: Uninit<'_>) -> Result<()> {
        let (item_bytes, guarded) = (self.corpus.item_bytes(), self.guarded.unwrap_or(false));
        let mut first = start;
        while first < stop {
            let run = self.run(first)?;
            let last = stop.min(run.stop);
            let length = ((last - first) * item_bytes) as usize;
            let offset = run.offset_bytes + (first - run.start) * item_bytes;
            run.opened.copy_into(offset, out.take_front(length), guarded)?;
            first = last;
        }
        Ok(())
    }

    fn run(&mut self, token: u64) -> Result<&OpenRun> {
        let known = self.last.take().filter(|run| (run.start..run.stop).contains(&token));
        let run = if let Some(known) = known { known } else { self.open(token)? };
        Ok(self.last.insert(run))
    }

    fn open(&mut self, token: u64) -> Result<OpenRun> {
        let corpus = &self.corpus;
        let (shard, run) = corpus.run(token)?;
        if self.touched.last() != Some(&shard) {
            self.touched.push(shard);
        }
        let data_offset_bytes = corpus.shards[shard].layout.data_offset_bytes;
        Ok(OpenRun {
            start: run.start,
            stop: run.stop,
            offset_bytes: data_offset_bytes + run.first * corpus.item_bytes(),
            opened: corpus.opened(shard)?,
        })
    }
}

fn does_not_fit(corpus: &TokenCorpus, token: u64, element: Element) -> Error {
    let detail = format!(
        "does not fit in {}; use {}",
        element.word(),
        if element == Element::I32 { "dtype=\"int64\" or \"raw\"" } else { "dtype=\"raw\"" }
    );
    bad_token(corpus, token, &detail)
}

fn beyond_vocabulary(corpus: &TokenCorpus, first: u64, found: Beyond, vocabulary: u64) -> Error {
    let detail = format!(
        "is {}, but vocabulary={vocabulary} has the ids 0 to {}; the file is of another tokenizer or of another \
         dtype, or the vocabulary is larger",
        found.id,
        vocabulary.saturating_sub(1)
    );
    bad_token(corpus, first + found.position as u64, &detail)
}

/// Returns the error for a token, with its position in the corpus and in its file.
fn bad_token(corpus: &TokenCorpus, token: u64, what: &str) -> Error {
    let (shard, run) = match corpus.run(token) {
        Ok(found) => found,
        Err(error) => return error,
    };
    let shard = &corpus.shards[shard];
    let number = run.first + (token - run.start);
    let detail = format!("token {token} of the corpus (number {number} of this file) {what}");
    Error::format(&shard.path, shard.layout.data_offset_bytes + number * corpus.item_bytes(), detail)
}
