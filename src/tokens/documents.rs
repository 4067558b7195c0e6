//! Documents: where on the axis each of them begins, looked up in the files that record it. Nothing is
//! loaded; an answer costs some reads of a few bytes.
//!
//! A document never crosses shards: each shard that records documents begins with one. Documents may be
//! empty, then several begin at one place.

use crate::error::{Error, Result};
use crate::mapped_file::Reader;

use super::corpus::TokenCorpus;
use super::format::megatron::Tables;

/// So many documents that begin at one place are passed one by one, further ones by a search.
const SAME_PLACE: u32 = 64;

/// How a shard's documents are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentTable {
    /// Megatron's `.idx`: runs of sequences.
    Megatron(Tables),
    /// datatrove's `.ds.index`: the end of each document, in tokens.
    Ends { documents: u64, tokens: u64 },
}

impl DocumentTable {
    pub fn count(&self) -> u64 {
        match self {
            Self::Megatron(tables) => tables.documents(),
            Self::Ends { documents, .. } => *documents,
        }
    }

    /// Where document `number` begins, in tokens of the shard; for `count()`, where the last one ends.
    pub fn start(&self, index: &Reader<'_>, number: u64) -> Result<u64> {
        match self {
            Self::Megatron(tables) => tables.document_start(index, number),
            Self::Ends { .. } if number == 0 => Ok(0),
            Self::Ends { tokens, .. } => {
                let offset = 8 * (number - 1);
                let end = u64::from_le_bytes(index.bytes(offset)?);
                if end <= *tokens {
                    return Ok(end);
                }
                let detail = format!(
                    "document {} ends at token {end}, but the file has {tokens} tokens; the index belongs to \
                     another file or is damaged",
                    number - 1
                );
                Err(Error::Format { path: index.opened().path().into(), offset: Some(offset), detail })
            }
        }
    }

    /// The first document at or after `from` that begins at or after `token`, or `count()`.
    fn first_at(&self, index: &Reader<'_>, from: u64, token: u64) -> Result<u64> {
        let (mut low, mut high) = (from, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(index, middle)? < token {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Appends `base` + each place in `[low, high)` where documents begin, ascending, and once: what stands
    /// in `out` from `known` on has been appended by the same call.
    fn places(
        &self,
        index: &Reader<'_>,
        (low, high): (u64, u64),
        base: u64,
        known: usize,
        out: &mut Vec<u64>,
    ) -> Result<()> {
        let mut number = self.first_at(index, 0, low)?;
        let mut last = low;
        let mut same = 0;
        while number < self.count() {
            let start = self.start(index, number)?;
            if start < last {
                return Err(out_of_order(index, number, start, last));
            }
            if start >= high {
                break;
            }
            number += 1;
            if out[known..].last() == Some(&(base + start)) {
                same += 1;
                if same == SAME_PLACE {
                    number = self.first_at(index, number, start + 1)?;
                    same = 0;
                }
            } else {
                out.push(base + start);
                same = 0;
            }
            last = start;
        }
        Ok(())
    }
}

fn out_of_order(index: &Reader<'_>, number: u64, start: u64, last: u64) -> Error {
    let detail = format!(
        "document {number} begins at token {start}, before the one in front of it, which begins at {last}; \
         the index is damaged"
    );
    Error::Format { path: index.opened().path().into(), offset: None, detail }
}

impl TokenCorpus {
    /// Does every shard record its documents?
    pub fn has_documents(&self) -> bool {
        self.document_count().is_some()
    }

    /// Appends each place p with `start < p < stop` where a document begins, ascending and once, however
    /// many empty documents begin there. Work is bounded by the number of tokens in the range.
    pub fn document_starts(&self, start: u64, stop: u64, out: &mut Vec<u64>) -> Result<()> {
        if start > stop || stop > self.len() {
            let detail = format!("tokens {start} to {stop} of a corpus of {}", self.len());
            return Err(Error::Index { detail });
        }
        if !self.has_documents() {
            return Err(no_documents());
        }
        let (first, known) = (self.index_of(start), out.len());
        for shard in self.shards()[first..].iter().take_while(|shard| shard.start < stop) {
            let Some((table, index)) = &shard.documents else { continue };
            let index = self.index_file(*index)?;
            let reader = index.reader();
            let low = (start + 1).saturating_sub(shard.start);
            table.places(&reader, (low, stop - shard.start), shard.start, known, out)?;
            reader.finish()?;
        }
        Ok(())
    }

    /// Where the documents `first`, `first + 1`, … begin, as many as `out` has room for. The one after the
    /// last document begins at the end of the corpus.
    pub fn document_bounds(&self, first: u64, out: &mut [u64]) -> Result<()> {
        let count = self.document_count().ok_or_else(no_documents)?;
        let stop = first.checked_add(out.len() as u64).filter(|&stop| stop <= count + 1);
        let Some(stop) = stop else {
            let detail = format!("documents {first} and {} more of {count}", out.len());
            return Err(Error::Index { detail });
        };
        let mut number = first;
        while number < stop {
            let place = self.shards().partition_point(|shard| shard.first_document <= number) - 1;
            let shard = &self.shards()[place];
            let Some((table, index)) = &shard.documents else { return Err(no_documents()) };
            let index = self.index_file(*index)?;
            let reader = index.reader();
            // The last shard also tells where its last document ends.
            let after = u64::from(number == count);
            let end = stop.min(shard.first_document + table.count() + after);
            let mut last = 0;
            for number in number..end {
                let start = table.start(&reader, number - shard.first_document)?;
                if start < last {
                    return Err(out_of_order(&reader, number - shard.first_document, start, last));
                }
                last = start;
                out[(number - first) as usize] = shard.start + start;
            }
            reader.finish()?;
            number = end;
        }
        Ok(())
    }
}

fn no_documents() -> Error {
    Error::argument("the files of this corpus do not record where documents begin")
}
