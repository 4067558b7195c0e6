//! Rows of batches: tokens of a corpus, copied and widened into memory.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::mapped_file::{Opened, can_copy_from_mappings};
use crate::os::memory::Uninit;
use crate::tokens::corpus::TokenCorpus;
use crate::widen::{self, Element};

use super::layout::row_bytes;

/// Bytes of a mapping that one step copies and widens. They stay in the first-level cache.
const BLOCK_BYTES: u64 = 8 << 10;

/// Bytes of the next row that are prefetched. After those the processor has seen the direction.
const PREFETCHED_BYTES: u64 = 2 << 10;

/// Fills rows of batches, one at a time. It keeps the last shard, which makes the next row cheaper.
///
/// The caller fills some rows of one corpus in one thread, then calls [`RowCopier::verify`]: only then are
/// they good.
#[derive(Debug, Default)]
pub struct RowCopier {
    scratch: Vec<u8>,
    reader: TokenCopier,
    /// Bytes of rows that were read, not copied from a mapping, since [`Self::take_read_bytes`].
    read_bytes: u64,
}

impl RowCopier {
    /// Writes the tokens `start..stop` to `x_row`. With targets, the last of them is not in `x_row`, and
    /// `y_row` gets all but the first.
    ///
    /// After an error the rows since the last [`Self::verify`] are undefined, and their files are forgotten.
    pub fn row(
        &mut self,
        corpus: &TokenCorpus,
        (start, stop): (u64, u64),
        has_targets: bool,
        element: Element,
        x_row: Uninit<'_>,
        y_row: Option<Uninit<'_>>,
    ) -> Result<()> {
        let length = stop.checked_sub(start).and_then(|span| span.checked_sub(u64::from(has_targets)));
        let row_bytes = length.and_then(|length| row_bytes(length, corpus.dtype, element));
        let y_bytes = y_row.as_ref().map(Uninit::len);
        if row_bytes != Some(x_row.len()) || y_bytes != row_bytes.filter(|_| has_targets) {
            return Err(Error::argument("the row is not of the window's size"));
        }
        if stop > corpus.len() {
            let detail = format!("tokens {start} to {stop} of a corpus of {}", corpus.len());
            return Err(Error::Index { detail });
        }
        let window = (start, stop - u64::from(has_targets));
        let is_mapped = self.reader.is_mapped(corpus, window);
        if matches!(is_mapped, Ok(false)) {
            self.read_bytes += (stop - start) * corpus.item_bytes();
        }
        let done = match is_mapped {
            Ok(true) if element.is_copy(corpus.dtype) => self.copy_row(corpus, window, x_row, y_row),
            Ok(true) => {
                let block_tokens = BLOCK_BYTES / corpus.item_bytes();
                self.widen_row(corpus, window, block_tokens, element, x_row, y_row)
            }
            // A read is a system call, perhaps a request to a server: one for the whole row.
            Ok(false) if element.is_copy(corpus.dtype) => self.read_row(corpus, window, x_row, y_row),
            Ok(false) => self.widen_row(corpus, window, window.1 - window.0, element, x_row, y_row),
            Err(error) => Err(error),
        };
        if done.is_err() {
            self.reader = TokenCopier::default();
        }
        done
    }

    pub fn take_read_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.read_bytes)
    }

    /// Prefetches the row that begins with token `start`, into the processor's cache.
    pub fn prefetch(&self, corpus: &TokenCorpus, start: u64) {
        self.reader.prefetch(corpus, start);
    }

    /// Checks each file that was read since the last call: one that was cut or rewritten meanwhile is an
    /// error. Returns their indices, for [`TokenCorpus::verify_now`] at the end of the batch.
    pub fn verify(&mut self, corpus: &TokenCorpus) -> Result<Vec<usize>> {
        let touched = self.take_touched(corpus)?;
        corpus.verify(touched.iter().copied())?;
        Ok(touched)
    }

    /// The shards that were read since the last call, without looking at them.
    pub(super) fn take_touched(&mut self, corpus: &TokenCorpus) -> Result<Vec<usize>> {
        let TokenCopier { of, mut touched, .. } = std::mem::take(&mut self.reader);
        if of.is_some_and(|of| of != address(corpus)) {
            return Err(another_corpus());
        }
        touched.sort_unstable();
        touched.dedup();
        Ok(touched)
    }

    /// Copies tokens from the mapping to x and to y. The second time they come from the first-level cache.
    fn copy_row(
        &mut self,
        corpus: &TokenCorpus,
        (start, stop): (u64, u64),
        mut x: Uninit<'_>,
        mut y: Option<Uninit<'_>>,
    ) -> Result<()> {
        let item = corpus.item_bytes() as usize;
        for (first, last) in blocks(start, stop, BLOCK_BYTES / corpus.item_bytes()) {
            let place = (first - start) as usize * item..(last - start) as usize * item;
            self.reader.read(corpus, (first, last), x.range(place.clone()))?;
            if let Some(y) = &mut y {
                self.reader.read(corpus, (first + 1, last + 1), y.range(place))?;
            }
        }
        Ok(())
    }

    /// Reads tokens with one system call: to x, or with targets to a scratch block and from there to x and y.
    fn read_row(
        &mut self,
        corpus: &TokenCorpus,
        (start, stop): (u64, u64),
        mut x: Uninit<'_>,
        y: Option<Uninit<'_>>,
    ) -> Result<()> {
        let Some(mut y) = y else { return self.reader.read(corpus, (start, stop), x) };
        let source_bytes = x.len() + corpus.item_bytes() as usize;
        if self.scratch.len() < source_bytes {
            self.scratch.resize(source_bytes, 0);
        }
        let source = &mut self.scratch[..source_bytes];
        self.reader.read(corpus, (start, stop + 1), Uninit::of(source))?;
        x.copy_from_slice(&source[..x.len()]);
        y.copy_from_slice(&source[source_bytes - y.len()..]);
        Ok(())
    }

    fn widen_row(
        &mut self,
        corpus: &TokenCorpus,
        (start, stop): (u64, u64),
        block_tokens: u64,
        element: Element,
        mut x: Uninit<'_>,
        mut y: Option<Uninit<'_>>,
    ) -> Result<()> {
        let (dtype, item) = (corpus.dtype, corpus.item_bytes() as usize);
        let element_bytes = element.bytes(dtype) as usize;
        for (first, last) in blocks(start, stop, block_tokens) {
            let place = (first - start) as usize * element_bytes..(last - start) as usize * element_bytes;
            let source_stop = last + u64::from(y.is_some());
            let source_bytes = (source_stop - first) as usize * item;
            if self.scratch.len() < source_bytes {
                self.scratch.resize(source_bytes, 0);
            }
            let source = &mut self.scratch[..source_bytes];
            self.reader.read(corpus, (first, source_stop), Uninit::of(source))?;
            if last < stop {
                self.reader.prefetch(corpus, source_stop);
            }
            let x = x.range(place.clone());
            let done = match &mut y {
                Some(y) => widen::widen_window(source, dtype, element, x, y.range(place)),
                None => widen::widen(source, dtype, element, x),
            };
            done.map_err(|refused| does_not_fit(corpus, first + refused.position as u64, element))?;
        }
        Ok(())
    }
}

/// The range `start..stop` in blocks.
fn blocks(start: u64, stop: u64, block_tokens: u64) -> impl Iterator<Item = (u64, u64)> {
    let firsts = std::iter::successors(Some(start), move |first| first.checked_add(block_tokens));
    firsts
        .take_while(move |first| *first < stop)
        .map(move |first| (first, stop.min(first.saturating_add(block_tokens))))
}

/// Copies tokens out of a corpus, and notes which files it read.
#[derive(Debug, Default)]
struct TokenCopier {
    /// The corpus that the other fields are about.
    of: Option<usize>,
    touched: Vec<usize>,
    last: Option<OpenShard>,
    /// The answer of [`can_copy_from_mappings`] in this thread, after the first mapping.
    guarded: Option<bool>,
}

/// The last shard that was read. Looking it up and asking for its file takes longer than a short copy.
#[derive(Debug)]
struct OpenShard {
    start: u64,
    stop: u64,
    data_offset_bytes: u64,
    opened: Arc<Opened>,
}

impl TokenCopier {
    /// Returns whether the first file of a window is copied from a mapping. The caller calls this before
    /// [`Self::read`].
    fn is_mapped(&mut self, corpus: &TokenCorpus, (start, stop): (u64, u64)) -> Result<bool> {
        if *self.of.get_or_insert_with(|| address(corpus)) != address(corpus) {
            return Err(another_corpus());
        }
        if start == stop {
            return Ok(true);
        }
        let is_mapped = self.shard(corpus, start)?.opened.region().is_some();
        Ok(is_mapped && *self.guarded.get_or_insert_with(can_copy_from_mappings))
    }

    /// Prefetches the tokens from `start` on, if they are of the last shard.
    fn prefetch(&self, corpus: &TokenCorpus, start: u64) {
        let Some(shard) = self.last.as_ref().filter(|shard| (shard.start..shard.stop).contains(&start))
        else {
            return;
        };
        let offset = shard.data_offset_bytes + (start - shard.start) * corpus.item_bytes();
        shard.opened.prefetch(offset, PREFETCHED_BYTES);
    }

    /// Fills `out` with tokens from `start` on.
    fn read(&mut self, corpus: &TokenCorpus, (start, stop): (u64, u64), mut out: Uninit<'_>) -> Result<()> {
        let (item_bytes, guarded) = (corpus.item_bytes(), self.guarded.unwrap_or(false));
        let mut first = start;
        while first < stop {
            let shard = self.shard(corpus, first)?;
            let last = stop.min(shard.stop);
            let length = ((last - first) * item_bytes) as usize;
            let offset = shard.data_offset_bytes + (first - shard.start) * item_bytes;
            shard.opened.copy_into(offset, out.take_front(length), guarded)?;
            first = last;
        }
        Ok(())
    }

    fn shard(&mut self, corpus: &TokenCorpus, token: u64) -> Result<&OpenShard> {
        let known = self.last.take().filter(|shard| (shard.start..shard.stop).contains(&token));
        let shard = if let Some(known) = known { known } else { self.open(corpus, token)? };
        Ok(self.last.insert(shard))
    }

    fn open(&mut self, corpus: &TokenCorpus, token: u64) -> Result<OpenShard> {
        let after = token.saturating_add(1);
        let outside = || Error::Index { detail: format!("token {token} of a corpus of {}", corpus.len()) };
        let index = corpus.pieces(token, after)?.next().ok_or_else(outside)?.shard;
        self.touched.push(index);
        let shard = &corpus.shards[index];
        Ok(OpenShard {
            start: shard.start,
            stop: shard.start + shard.layout.tokens,
            data_offset_bytes: shard.layout.data_offset_bytes,
            opened: corpus.opened(index)?,
        })
    }
}

/// A number that tells corpora apart.
fn address(corpus: &TokenCorpus) -> usize {
    std::ptr::from_ref(corpus).addr()
}

fn another_corpus() -> Error {
    Error::argument("cannot copy rows of another corpus before `verify`")
}

fn does_not_fit(corpus: &TokenCorpus, token: u64, element: Element) -> Error {
    let shard = &corpus.shards[corpus.index_of(token)];
    let detail = format!(
        "token {token} of the corpus (number {} of this file) does not fit in {}; use {}",
        token - shard.start,
        element.word(),
        if element == Element::I32 { "dtype=\"int64\" or \"raw\"" } else { "dtype=\"raw\"" }
    );
    let offset = shard.layout.data_offset_bytes + (token - shard.start) * corpus.item_bytes();
    Error::Format { path: shard.path.clone(), offset: Some(offset), detail }
}
