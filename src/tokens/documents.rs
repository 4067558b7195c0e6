//! The documents of a corpus, and the positions where they begin.

use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::mapped_file::Opened;

use super::corpus::{ShardIndex, TokenCorpus};
use super::format::documents::out_of_order;

impl TokenCorpus {
    /// Returns each position p with `start < p < stop` where a document begins, in ascending order. A position occurs
    /// once, even if empty documents also begin there. The work is limited by the number of tokens in the range.
    pub fn document_starts(&self, start: u64, stop: u64) -> Result<Vec<u64>> {
        self.check_range(start, stop)?;
        self.document_count.ok_or_else(no_documents)?;
        let mut places = Vec::new();
        for shard in self.shards[self.index_of(start)..].iter().take_while(|shard| shard.start < stop) {
            let Some(index) = &shard.index else { continue };
            let opened = self.files.opened(index.file)?;
            index.check_documents(&opened)?;
            let reader = opened.reader();
            let low = (start + 1).saturating_sub(shard.start);
            let high = shard.layout.tokens.min(stop - shard.start);
            let found = index.documents.places(&reader, (shard.file_start + low, shard.file_start + high))?;
            places.extend(found.iter().map(|place| place - shard.file_start + shard.start));
            reader.finish()?;
        }
        Ok(places)
    }

    /// Checks every document entry of every file again.
    pub fn check_documents(&self) -> Result<()> {
        for index in self.shards.iter().filter_map(|shard| shard.index.as_ref()) {
            index.checked.has_checked_documents.store(false, Ordering::Relaxed);
            index.check_documents(&*self.files.opened(index.file)?)?;
        }
        Ok(())
    }

    /// Fills `out` with the positions where documents `first`, `first + 1`, … begin. The document after the last one
    /// counts as beginning at the end of the corpus.
    pub fn document_bounds(&self, first: u64, out: &mut [u64]) -> Result<()> {
        let count = self.document_count.ok_or_else(no_documents)?;
        let stop = first.checked_add(out.len() as u64).filter(|&stop| stop <= count + 1);
        let Some(stop) = stop else {
            let detail = format!("documents {first} and {} more of {count}", out.len());
            return Err(Error::index(detail));
        };
        let mut number = first;
        while number < stop {
            let place = self.shards.partition_point(|shard| shard.first_document <= number) - 1;
            let shard = &self.shards[place];
            let Some(index) = &shard.index else { return Err(no_documents()) };
            let opened = self.files.opened(index.file)?;
            index.check_documents(&opened)?;
            let reader = opened.reader();
            // The last shard also knows the end of its last document.
            let after = u64::from(number == count);
            let end = stop.min(shard.first_document + index.count + after);
            let (file_start, file_stop) = (shard.file_start, shard.file_start + shard.layout.tokens);
            let mut last = 0;
            for number in number..end {
                let entry = index.first + (number - shard.first_document);
                let start = index.documents.start(&reader, entry)?;
                if start < last {
                    return Err(out_of_order(&reader, entry, start, last));
                }
                last = start;
                // If a part of the corpus cuts a document, the document ends there.
                let place = start.clamp(file_start, file_stop) - file_start;
                out[(number - first) as usize] = shard.start + place;
            }
            reader.finish()?;
            number = end;
        }
        Ok(())
    }
}

impl ShardIndex {
    /// Checks all entries before the first use. Threads may do so at the same time.
    pub(super) fn check_documents(&self, opened: &Opened) -> Result<()> {
        if !self.checked.has_checked_documents.load(Ordering::Acquire) {
            let reader = opened.reader();
            self.documents.check(&reader)?;
            reader.finish()?;
            self.checked.has_checked_documents.store(true, Ordering::Release);
        }
        Ok(())
    }
}

fn no_documents() -> Error {
    Error::argument("the files of this corpus do not record where documents begin")
}
