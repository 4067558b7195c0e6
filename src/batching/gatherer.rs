//! Batch work in one thread: filling a chunk, and asking the server about a file.

use std::mem::take;

use crate::error::{Error, Result};
use crate::fetch::crew::{Step, Wait, Work};
use crate::fetch::ranges::{ByteRange, FileId};
use crate::mapped_file::{DropBehind, Mode, page_cache};
use crate::os::memory::Uninit;
use crate::os::memory::parts::Part;
use crate::tokens::corpus::TokenCorpus;
use crate::widen::Element;

use super::layout::RowChunk;
use super::metrics::Metrics;
use super::options::Documents;
use super::plan::{BatchPlan, BatchRow, TokenSource};
use super::ring::{Claim, Filled, Ring, SlotWork};
use super::row::RowCopier;
use super::threads::Shared;

/// The tools of a thread: a copier for each source.
#[derive(Debug, Default)]
pub(super) struct Gatherer {
    copiers: Vec<RowCopier>,
}

impl Gatherer {
    /// Fills a chunk with its rows of `plan`, and checks each file that it read.
    fn fill(&mut self, shared: &Shared, plan: &BatchPlan, mut chunk: RowChunk) -> Result<Filled> {
        let Shared { feed, options, layout, metrics, .. } = shared;
        let wait = Wait::begin();
        let mut filled = Filled::default();
        let rows = &plan.rows[chunk.rows.clone()];
        let mut x = memory_of_rows(&mut chunk.x, layout.row_bytes);
        let mut y = chunk.y.as_mut().map(|part| memory_of_rows(part, layout.row_bytes));
        let mut positions =
            chunk.positions.as_mut().map(|part| memory_of_rows(part, layout.position_row_bytes));
        let mut mask = chunk.mask.as_mut().map(|part| memory_of_rows(part, layout.mask_row_bytes));
        if self.copiers.is_empty() {
            let marker = match options.documents {
                Documents::Marked(marker) => Some(marker),
                Documents::Ignore | Documents::Recorded => None,
            };
            let copier =
                |source: &TokenSource| RowCopier::new(source.corpus.clone(), options.vocabulary, marker);
            self.copiers = feed.sources.iter().map(copier).collect();
        }
        for (number, row) in rows.iter().enumerate() {
            let x = x.next().ok_or_else(wrong_size)?;
            let y = y.as_mut().map(|y| y.next().ok_or_else(wrong_size)).transpose()?;
            if let Some(next) = rows.get(number + 1).filter(|_| !options.without.prefetch) {
                self.copiers[next.source].prefetch(next.start);
            }
            self.copiers[row.source].row((row.start, row.stop), options.element, x, y)?;
            if let (Some(positions), Some(mask)) = (&mut positions, &mut mask) {
                let mut borders = match options.documents {
                    Documents::Marked(_) => take(&mut self.copiers[row.source].borders),
                    Documents::Ignore | Documents::Recorded => {
                        recorded_borders(&feed.sources[row.source].corpus, row.start, layout.tokens)?
                    }
                };
                mask_ends(mask.next().ok_or_else(wrong_size)?, &borders);
                let _behind = borders.pop_if(|border| *border == layout.tokens);
                let positions = positions.next().ok_or_else(wrong_size)?;
                count_up(positions, &borders, layout.tokens, options.element);
                filled.documents.push((chunk.rows.start + number, borders));
            }
        }
        for (set, (copier, source)) in self.copiers.iter_mut().zip(&feed.sources).enumerate() {
            for index in copier.verify()? {
                if source.corpus.facts(index).mode == Mode::Read {
                    filled.unmapped.push(FileId { set, index });
                }
            }
            Metrics::add(&metrics.bytes_read, take(&mut copier.read_bytes));
        }
        let item_bytes = |row: &BatchRow| feed.sources[row.source].corpus.item_bytes();
        let asked = rows.iter().map(|row| (row.stop - row.start) * item_bytes(row)).sum();
        let (waited, major_faults) = wait.end((rows.len() * layout.row_bytes) as u64);
        filled.waited = waited;
        Metrics::add(&metrics.bytes_asked, asked);
        Metrics::add(&metrics.major_faults, major_faults);
        let counter = if waited { &metrics.lookahead_misses } else { &metrics.lookahead_hits };
        Metrics::add(counter, rows.len() as u64);
        Ok(filled)
    }
}

impl Shared {
    /// Does the claimed work, and reports it to the ring.
    pub fn fill(&self, claim: Claim, gatherer: &mut Gatherer) -> Step {
        let number = claim.number;
        let (items, outcome) = match claim.work {
            SlotWork::Fill(chunk) => (chunk.rows.len(), gatherer.fill(self, &claim.plan, chunk)),
            SlotWork::Check(file) => {
                let checked = self.feed.sources[file.set].corpus.verify_now([file.index]);
                (0, checked.map(|()| Filled::default()))
            }
        };
        let waited = outcome.as_ref().is_ok_and(|filled| filled.waited);
        let behind = self.ring(|ring| ring.finish(number, outcome));
        if let (Some(what), Some(ranges)) = (self.options.drop_behind, behind) {
            self.drop_behind(&ranges, what);
        }
        Step { items, waited }
    }

    /// Returns whether all data for a claim is in the page cache, judged by a few of its rows: stalled storage delays
    /// more than one row.
    pub fn is_resident(&self, claim: &Claim) -> bool {
        /// Checking all rows would take a fifth of the time for gathering them.
        const SAMPLED_ROWS: usize = 16;
        match &claim.work {
            SlotWork::Fill(chunk) => {
                let rows = &claim.plan.rows[chunk.rows.clone()];
                let step = rows.len().div_ceil(SAMPLED_ROWS).max(1);
                rows.iter().step_by(step).all(|row| self.feed.is_resident(row))
            }
            // This may ask a server, which may not answer.
            SlotWork::Check(_) => false,
        }
    }

    fn drop_behind(&self, ranges: &[ByteRange], what: DropBehind) {
        for range in ranges {
            if let Ok(opened) = self.feed.open(range.file) {
                let len = range.end().min(opened.size()).saturating_sub(range.offset);
                page_cache::drop_behind(&opened, range.offset, len, what);
            }
        }
    }
}

impl Work for Shared {
    type Tools = Gatherer;

    fn step(&self, gatherer: &mut Gatherer) -> Option<Step> {
        self.wait_for_work().map(|claim| self.fill(claim, gatherer))
    }

    fn leave(&self) {
        self.ring(Ring::pass_on);
    }

    fn panicked(&self) {
        let error = Error::argument("a thread of the loader panicked; please report it");
        self.ring(|ring| ring.close(Some(error)));
    }
}

/// Yields the memory of a part, row by row.
fn memory_of_rows(part: &mut Part, row_bytes: usize) -> impl Iterator<Item = Uninit<'_>> {
    part.memory().chunks_exact(row_bytes.max(1))
}

fn wrong_size() -> Error {
    Error::argument("the memory for the batch is not of the batch's size")
}

/// Returns the borders that the files record: positions where a document begins, in tokens from the row's first token.
/// The first token is no border, but the position behind the last token may be one.
fn recorded_borders(corpus: &TokenCorpus, start: u64, tokens: u64) -> Result<Vec<u64>> {
    let stop = corpus.len().min(start + tokens + 1);
    let mut borders = corpus.document_starts(start, stop)?;
    for border in &mut borders {
        *border -= start;
    }
    Ok(borders)
}

/// Writes 1 for each token, and 0 for the last token of each document with a successor.
fn mask_ends(mut out: Uninit<'_>, borders: &[u64]) {
    out.fill(1);
    for border in borders {
        let end = *border as usize;
        out.range(end - 1..end).fill(0);
    }
}

/// Writes 0, 1, 2, …, restarting at each document.
fn count_up(mut out: Uninit<'_>, starts: &[u64], tokens: u64, element: Element) {
    let mut begin = 0;
    for stop in starts.iter().copied().chain([tokens]) {
        let length = (stop - begin) as usize;
        // Without a branch in the loop over a document.
        if element == Element::I64 {
            let document = out.take_front(length * size_of::<i64>());
            for (position, place) in document.arrays().enumerate() {
                place.write((position as i64).to_ne_bytes());
            }
        } else {
            let document = out.take_front(length * size_of::<i32>());
            for (position, place) in document.arrays().enumerate() {
                place.write((position as i32).to_ne_bytes());
            }
        }
        begin = stop;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_restart_in_each_document() {
        let mut room = vec![0_u8; 7 * 4];
        count_up(Uninit::of(&mut room), &[2, 5], 7, Element::I32);
        let found: Vec<i32> =
            room.as_chunks::<4>().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect();
        assert_eq!(found, [0, 1, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn the_mask_is_zero_at_the_last_token_before_each_border() {
        let mut room = vec![7_u8; 7];
        mask_ends(Uninit::of(&mut room), &[2, 5, 7]);
        assert_eq!(room, [1, 0, 1, 1, 0, 1, 0]);
    }
}
