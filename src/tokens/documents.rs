//! Documents of a corpus: where on the axis each of them begins.

use crate::error::{Error, Result};

use super::corpus::TokenCorpus;
use super::format::documents::out_of_order;

impl TokenCorpus {
    /// Returns each place p with `start < p < stop` where a document begins, ascending and once, however
    /// many empty documents begin there. Work is bounded by the number of tokens in the range.
    pub fn document_starts(&self, start: u64, stop: u64) -> Result<Vec<u64>> {
        self.check_range(start, stop)?;
        self.document_count.ok_or_else(no_documents)?;
        let mut places = Vec::new();
        for shard in self.shards[self.index_of(start)..].iter().take_while(|shard| shard.start < stop) {
            let Some((table, index)) = &shard.documents else { continue };
            let index = self.opened(*index)?;
            let reader = index.reader();
            let low = (start + 1).saturating_sub(shard.start);
            table.places(&reader, (low, stop - shard.start), shard.start, &mut places)?;
            reader.finish()?;
        }
        Ok(places)
    }

    /// Fills `out` with the positions where documents `first`, `first + 1`, … begin. The document after the last
    /// one begins at the end of the corpus.
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
            let Some((table, index)) = &shard.documents else { return Err(no_documents()) };
            let index = self.opened(*index)?;
            let reader = index.reader();
            // The last shard also knows where its last document ends.
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
