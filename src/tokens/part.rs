//! A part of a corpus: a corpus with fewer tokens over the same open files.
//!
//! Only its first and its last shard differ from the whole corpus: they begin later or end earlier. So all code for a
//! corpus works for a part, and no window crosses an end of the part.

use std::sync::OnceLock;

use crate::error::Result;

use super::corpus::{Shard, TokenCorpus};

impl TokenCorpus {
    /// Returns the tokens `[start, stop)` as a corpus. Its shards exclude files outside the range. A document that
    /// crosses an end is cut there, and an empty document at `stop` belongs to the next part.
    pub fn part(&self, start: u64, stop: u64) -> Result<Self> {
        self.check_range(start, stop)?;
        let files = self.files.share()?;
        let is_whole = (start, stop) == (0, self.len());
        let range = if is_whole { 0..self.shards.len() } else { self.shards_of(start, stop) };
        let mut shards = self.shards[range].to_vec();
        let mut documents = 0;
        for shard in &mut shards {
            let low = start.saturating_sub(shard.start).min(shard.layout.tokens);
            let high = stop.saturating_sub(shard.start).min(shard.layout.tokens);
            if start == stop || (low, high) != (0, shard.layout.tokens) {
                self.clip_documents(shard, (low, high))?;
                clip(shard, (low, high));
            }
            shard.start = shard.start.saturating_sub(start);
            shard.first_document = documents;
            documents += shard.index.as_ref().map_or(0, |index| index.count);
        }
        Ok(Self {
            dtype: self.dtype,
            document_count: self.document_count.map(|_| documents),
            files,
            fingerprint: OnceLock::new(),
            shards,
            len: stop - start,
        })
    }

    /// Returns the shards with tokens in the range, without empty ones at its ends. An empty range gives one shard.
    fn shards_of(&self, start: u64, stop: u64) -> std::ops::Range<usize> {
        let first = self.shards.partition_point(|shard| shard.start + shard.layout.tokens <= start);
        let first = first.min(self.shards.len() - 1);
        let after = self.shards.partition_point(|shard| shard.start < stop);
        first..after.max(first + 1)
    }

    /// Keeps the documents of a shard that have tokens in the range, and empty documents that begin in it.
    fn clip_documents(&self, shard: &mut Shard, (low, high): (u64, u64)) -> Result<()> {
        let Some(index) = &mut shard.index else { return Ok(()) };
        let opened = self.files.opened(index.file)?;
        index.check_documents(&opened)?;
        let (table, reader) = (&index.documents, opened.reader());
        let (file_low, file_high) = (shard.file_start + low, shard.file_start + high);
        let (old_first, old_stop) = (index.first, index.first + index.count);
        let mut new_first = old_first;
        if low > 0 {
            new_first = table.first_at(&reader, old_first, file_low)?.min(old_stop);
            // The previous document reaches into the range unless another document begins exactly there.
            if new_first > old_first && table.start(&reader, new_first)? != file_low {
                new_first -= 1;
            }
        }
        let mut stop = old_stop;
        if high < shard.layout.tokens {
            stop = table.first_at(&reader, new_first, file_high)?.min(old_stop);
        }
        reader.finish()?;
        (index.first, index.count) = (new_first, if low == high { 0 } else { stop - new_first });
        Ok(())
    }
}

/// Moves the start and the end of a shard's tokens.
fn clip(shard: &mut Shard, (low, high): (u64, u64)) {
    shard.layout.tokens = high - low;
    shard.file_start += low;
}
