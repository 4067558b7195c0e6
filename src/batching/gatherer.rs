//! What one gathering thread does with one piece of a batch.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::mapped_file::Mode;
use crate::os::memory::Uninit;
use crate::os::memory::parts::Part;
use crate::os::process::usage::Usage;
use crate::widen::Element;

use super::metrics::Metrics;
use super::plan::{BatchPlan, BatchRow, Feed};
use super::row::RowCopier;

/// Rows of a batch and where they go.
#[derive(Debug)]
pub(super) struct RowChunk {
    pub rows: Range<usize>,
    pub x: Part,
    pub y: Option<Part>,
    /// Position ids, for batches that tell documents apart.
    pub positions: Option<Part>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct ChunkOutcome {
    /// Per row, where documents begin inside it, in tokens from its first.
    pub documents: Vec<(usize, Vec<u64>)>,
    /// Whether the thread had to wait for storage.
    pub waited: bool,
    /// Files that were read without a mapping: they are to be looked at once more when the batch is whole.
    pub unmapped: Vec<FileOfFeed>,
}

/// (source, shard).
pub(super) type FileOfFeed = (usize, usize);

/// What a thread keeps from chunk to chunk.
#[derive(Debug, Default)]
pub(super) struct Gatherer {
    /// One for each source.
    gatherers: Vec<RowCopier>,
}

impl Gatherer {
    pub fn gather(
        &mut self,
        feed: &Feed,
        plan: &BatchPlan,
        chunk: &mut RowChunk,
        element: Element,
        metrics: &Metrics,
    ) -> Result<ChunkOutcome> {
        let before = Usage::of_thread();
        let mut outcome = ChunkOutcome::default();
        let rows = &plan.rows[chunk.rows.clone()];
        let mut x = rooms(&mut chunk.x, rows.len());
        let mut y = chunk.y.as_mut().map(|part| rooms(part, rows.len()));
        let mut positions = chunk.positions.as_mut().map(|part| rooms(part, rows.len()));
        self.gatherers.resize_with(feed.sources().len(), RowCopier::default);
        for (number, row) in rows.iter().enumerate() {
            let source = &feed.sources()[row.source];
            let x = x.next().ok_or_else(no_room)?;
            let y = match &mut y {
                Some(y) => Some(y.next().ok_or_else(no_room)?),
                None => None,
            };
            let has_targets = y.is_some();
            if let Some(next) = rows.get(number + 1) {
                self.gatherers[next.source].prefetch(&feed.sources()[next.source].corpus, next.start);
            }
            let gatherer = &mut self.gatherers[row.source];
            gatherer.row(&source.corpus, (row.start, row.stop), has_targets, element, x, y)?;
            if let Some(positions) = &mut positions {
                let tokens = source.windows.sequence_length();
                let starts = document_starts(feed, row, tokens)?;
                count_up(positions.next().ok_or_else(no_room)?, &starts, element);
                outcome.documents.push((chunk.rows.start + number, starts));
            }
        }
        for (number, (gatherer, source)) in self.gatherers.iter_mut().zip(feed.sources()).enumerate() {
            for shard in gatherer.verify(&source.corpus)? {
                if source.corpus.facts(shard).mode == Mode::Read {
                    outcome.unmapped.push((number, shard));
                }
            }
            Metrics::add(&metrics.bytes_read, gatherer.take_read_bytes());
        }
        let item_bytes = |row: &BatchRow| feed.sources()[row.source].corpus.item_bytes();
        let asked = rows.iter().map(|row| (row.stop - row.start) * item_bytes(row)).sum();
        let spent = Usage::of_thread().since(before);
        outcome.waited = spent.major_faults > 0 || spent.waits > 0;
        Metrics::add(&metrics.bytes_asked, asked);
        Metrics::add(&metrics.major_faults, spent.major_faults);
        let counter = if outcome.waited { &metrics.lookahead_misses } else { &metrics.lookahead_hits };
        Metrics::add(counter, rows.len() as u64);
        Ok(outcome)
    }
}

/// The part's memory as that many rows.
fn rooms(part: &mut Part, rows: usize) -> impl Iterator<Item = Uninit<'_>> {
    let row_bytes = (part.len() / rows.max(1)).max(1);
    part.memory().chunks_exact(row_bytes)
}

fn no_room() -> Error {
    Error::argument("the room for the batch is not of the batch's size")
}

fn document_starts(feed: &Feed, row: &BatchRow, tokens: u64) -> Result<Vec<u64>> {
    let mut starts = Vec::new();
    feed.sources()[row.source].corpus.document_starts(row.start, row.start + tokens, &mut starts)?;
    for start in &mut starts {
        *start -= row.start;
    }
    starts.retain(|&start| start > 0);
    Ok(starts)
}

/// Writes 0, 1, 2, … and begins again at each document.
fn count_up(out: Uninit<'_>, starts: &[u64], element: Element) {
    let mut starts = starts.iter().peekable();
    let mut begin = 0;
    let mut position = |token: u64| {
        if starts.next_if(|&&start| start == token).is_some() {
            begin = token;
        }
        token - begin
    };
    if element == Element::I64 {
        for (token, place) in out.arrays().enumerate() {
            place.write((position(token as u64) as i64).to_ne_bytes());
        }
    } else {
        for (token, place) in out.arrays().enumerate() {
            place.write((position(token as u64) as i32).to_ne_bytes());
        }
    }
}

/// Bytes of one position id: as wide as x, or 32 bits where x is of the files' type.
pub(super) fn position_bytes(element: Element) -> u64 {
    if element == Element::I64 { 8 } else { 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_begin_again_with_each_document() {
        let mut room = vec![0_u8; 7 * 4];
        count_up(Uninit::of(&mut room), &[2, 5], Element::I32);
        let found: Vec<i32> =
            room.as_chunks::<4>().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect();
        assert_eq!(found, [0, 1, 0, 1, 2, 0, 1]);
    }
}
