//! Cuts a file for hashing, and hashes one lane of it.
//!
//! A file is a row of *spans*, each with its own hash; for example, a span is the data of one tensor. A *lane* is a run
//! of whole spans that is hashed in order. Several lanes can be hashed in parallel. If the hash of the whole file is
//! wanted, the file is one lane. A *piece* is read in one go.

use std::collections::VecDeque;
use std::ops::Range;

use sha2::{Digest, Sha256};
use twox_hash::XxHash3_128;

/// Bytes that a thread reads at a time. They are still in the processor's cache when they are hashed.
pub const PIECE_BYTES: u64 = 512 << 10;
/// Minimum length of a lane, if a file is cut for several threads. Tests use shorter lanes.
const LANE_BYTES: u64 = if cfg!(test) { 2 << 20 } else { 32 << 20 };

/// The hashes of a lane up to `position`.
pub struct LaneHasher {
    position: u64,
    span_ends: VecDeque<u64>,
    span: XxHash3_128,
    sha256: Option<Sha256>,
    digests: Vec<u128>,
}

impl LaneHasher {
    /// Starts at offset `start` of a file, where the first span begins.
    pub fn new(start: u64, span_ends: &[u64], sha256: bool) -> Self {
        Self {
            position: start,
            span_ends: span_ends.iter().copied().collect(),
            span: XxHash3_128::new(),
            sha256: sha256.then(Sha256::new),
            digests: Vec::new(),
        }
    }

    /// Hashes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
        while let Some(&end) = self.span_ends.front().filter(|_| !bytes.is_empty()) {
            let len = (end - self.position).min(bytes.len() as u64);
            let (now, later) = bytes.split_at(len as usize);
            self.span.write(now);
            self.position += len;
            bytes = later;
            if self.position == end {
                self.end_span();
            }
        }
    }

    fn end_span(&mut self) {
        self.span_ends.pop_front();
        self.digests.push(std::mem::replace(&mut self.span, XxHash3_128::new()).finish_128());
    }

    /// Returns the XXH3 of each span, and the SHA-256 of all bytes.
    pub fn finish(mut self) -> (Vec<u128>, Option<[u8; 32]>) {
        // Only empty spans at the end are left.
        while !self.span_ends.is_empty() {
            self.end_span();
        }
        (self.digests, self.sha256.map(|sha256| sha256.finalize().into()))
    }
}

/// Returns the end of the piece that begins at `start`. Pieces end at multiples of their length in the file, so no two
/// of them share a page or a request.
pub fn piece_end(start: u64, lane_end: u64) -> u64 {
    (start - start % PIECE_BYTES + PIECE_BYTES).min(lane_end)
}

/// Cuts the first `len` bytes of a file into lanes of whole spans. Returns the byte range and the span numbers of each
/// lane.
pub fn lanes(span_ends: &[u64], len: u64, is_one: bool) -> Vec<(Range<u64>, Range<usize>)> {
    let (mut start, mut first, mut found) = (0, 0, Vec::new());
    for (number, &end) in span_ends.iter().enumerate() {
        // The last lane takes the rest, including empty spans at the end.
        if !is_one && end - start >= LANE_BYTES && end < len {
            found.push((start..end, first..number + 1));
            (start, first) = (end, number + 1);
        }
    }
    found.push((start..len, first..span_ends.len()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_consist_of_whole_spans_and_cover_the_file() {
        let [first, second, len] = [LANE_BYTES + 8, LANE_BYTES + 99, 3 * LANE_BYTES];
        let ends = [8, 8, first, second, len, len];
        assert_eq!(
            lanes(&ends, len, false),
            [(0..first, 0..3), (first..len, 3..6)],
            "empty spans at the end belong to the last lane"
        );
        assert_eq!(lanes(&ends, len, true), [(0..len, 0..6)]);
        assert_eq!(lanes(&[], 7, true), [(0..7, 0..0)]);
        assert_eq!(lanes(&[0, 0], 0, true), [(0..0, 0..2)]);
    }
}
