//! The sequences of a Megatron index: each has a length and a place in the token file.
//!
//! Most indexes list the sequences of the token file from its beginning to its end. Any other index is a view: it may
//! leave out sequences, repeat them or change their order. Its [`SequenceOrder`] finds a token with one binary search
//! in memory and one look at a block of [`BLOCK`] sequences.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

use crate::allocate;
use crate::error::{Error, Result};
use crate::mapped_file::FileReader;

/// Number of sequences per position kept in memory: 8 bytes for 192 bytes of the index.
const BLOCK: u64 = 16;

/// Number of sequences read at a time by a full scan.
const CHUNK: u64 = 16 << 10;

const ORDER: &str = "the positions of a Megatron index";

/// The sequence arrays in an index: `int32` lengths in tokens, then `int64` places in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Sequences {
    pub count: u64,
    /// Offset of the lengths in the index.
    pub offset_bytes: u64,
    /// Size of a token in bytes.
    pub item_bytes: u64,
    /// Size of the token file.
    pub data_bytes: u64,
}

/// Tokens that are consecutive both in the order of the index and in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenRun {
    /// The range of the run in the order of the index.
    pub start: u64,
    pub stop: u64,
    /// The number of its first token in the file.
    pub first: u64,
}

/// A sequence: its place and its length, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ListedSequence {
    first: u64,
    tokens: u64,
}

/// A sequence that begins inside the previous sequence of the index, so that some tokens are read twice.
///
/// A damaged length or place has this effect. A filter, a shuffle or a repetition of whole sequences does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap {
    /// The number of the second sequence.
    pub sequence: u64,
    /// The byte of the token file where it begins.
    pub place_bytes: u64,
    /// The bytes of the token file where the previous sequence begins and ends.
    pub front_bytes: (u64, u64),
}

impl ListedSequence {
    fn end(self) -> u64 {
        self.first + self.tokens
    }
}

impl Sequences {
    /// Checks all sequences. Returns their order if it differs from the token file's order.
    pub fn check(&self, index: &FileReader<'_>) -> Result<Option<SequenceOrder>> {
        let end = self.end_in_file_order(index)?;
        if end == Some(self.data_bytes) {
            return Ok(None);
        }
        Ok(Some(SequenceOrder { is_beginning: end.is_some(), ..self.follow(index)? }))
    }

    /// Returns the end of the last sequence, if the sequences are consecutive from the beginning of the file.
    fn end_in_file_order(&self, index: &FileReader<'_>) -> Result<Option<u64>> {
        let mut end = 0;
        for first in (0..self.count).step_by(CHUNK as usize) {
            let mut is_next = true;
            for (tokens, place) in pairs(&self.read(index, first, CHUNK)?) {
                is_next &= place == end && tokens >= 0;
                end = place.wrapping_add(i64::from(tokens) * self.item_bytes as i64);
            }
            if !is_next {
                return Ok(None);
            }
        }
        Ok(u64::try_from(end).ok())
    }

    /// Scans all sequences, and keeps a position for every block of them.
    fn follow(&self, index: &FileReader<'_>) -> Result<SequenceOrder> {
        let mut starts = allocate::vec(self.count.div_ceil(BLOCK) as usize, ORDER)?;
        let (mut tokens, mut digest, mut before) = (0_u64, XxHash3_64::new(), None);
        // The last nonempty sequence, and the first overlap.
        let (mut front, mut overlap) = (ListedSequence { first: 0, tokens: 0 }, None);
        for first in (0..self.count).step_by(CHUNK as usize) {
            let (lengths, places) = self.read(index, first, CHUNK)?;
            digest.write(&lengths);
            digest.write(&places);
            for (number, (length, place)) in (first..).zip(pairs(&(lengths, places))) {
                if number.is_multiple_of(BLOCK) {
                    starts.push(tokens);
                }
                let sequence = self.sequence(index, number, (length, place), before)?;
                before = Some(sequence.end() * self.item_bytes);
                if sequence.tokens > 0 {
                    if front.first < sequence.first && sequence.first < front.end() && overlap.is_none() {
                        overlap = Some(self.overlap(number, sequence, front));
                    }
                    front = sequence;
                }
                tokens = tokens.checked_add(sequence.tokens).ok_or_else(|| {
                    self.refuse(
                        index,
                        number,
                        format!("the sequences up to {number} have more than 2^64 tokens"),
                    )
                })?;
            }
        }
        Ok(SequenceOrder {
            sequences: *self,
            starts,
            tokens,
            is_beginning: false,
            overlap,
            digest: digest.finish(),
        })
    }

    fn overlap(&self, number: u64, sequence: ListedSequence, front: ListedSequence) -> Overlap {
        let [place_bytes, first, end] =
            [sequence.first, front.first, front.end()].map(|token| token * self.item_bytes);
        Overlap { sequence: number, place_bytes, front_bytes: (first, end) }
    }

    /// Returns the first token of a sequence in the token file.
    pub fn first_token(&self, index: &FileReader<'_>, number: u64) -> Result<u64> {
        // Read only the place, because looking up documents needs many. All lengths were checked when the index was
        // opened.
        let place = i64::from_le_bytes(index.bytes(self.places_offset() + 8 * number)?);
        Ok(self.sequence(index, number, (0, place), None)?.first)
    }

    /// Returns the offset of the places in the index. The number of sequences was checked against the size of the
    /// index.
    fn places_offset(&self) -> u64 {
        self.offset_bytes + 4 * self.count
    }

    /// Returns the lengths and the places of up to `count` sequences.
    fn read(&self, index: &FileReader<'_>, first: u64, count: u64) -> Result<(Vec<u8>, Vec<u8>)> {
        let count = count.min(self.count - first);
        let lengths = index.read(self.offset_bytes + 4 * first, 4 * count)?;
        Ok((lengths, index.read(self.places_offset() + 8 * first, 8 * count)?))
    }

    /// Checks an entry. `before` is the byte where the previous sequence ends.
    fn sequence(
        &self,
        index: &FileReader<'_>,
        number: u64,
        (length, place): (i32, i64),
        before: Option<u64>,
    ) -> Result<ListedSequence> {
        let refuse = |detail: String| Err(self.refuse(index, number, detail));
        let Ok(tokens) = u64::try_from(length) else {
            return refuse(format!("sequence {number} has {length} tokens, expected 0 or more"));
        };
        let item_bytes = self.item_bytes;
        // The builder used a 32-bit sum, which overflowed beyond 2^31 bytes.
        let is_wrapped = before.is_some_and(|end| end > i32::MAX as u64 && place == i64::from(end as i32));
        if is_wrapped {
            return refuse(format!(
                "sequence {number} begins at byte {place} of the token file, expected {}; builders of 2024 wrote such \
                 pointers with NumPy 2, build the index again",
                before.unwrap_or(0)
            ));
        }
        let place = match u64::try_from(place) {
            Ok(place) if place.is_multiple_of(item_bytes) => place,
            _ => {
                return refuse(format!(
                    "sequence {number} begins at byte {place} of the token file, expected 0 or more, and a multiple of \
                     {item_bytes}, the bytes of a token; build the index again"
                ));
            }
        };
        let end = i128::from(place) + i128::from(tokens) * i128::from(item_bytes);
        if end <= i128::from(self.data_bytes) {
            return Ok(ListedSequence { first: place / item_bytes, tokens });
        }
        refuse(format!(
            "sequence {number} has {tokens} tokens and ends at byte {end} of the token file, which has {} bytes; they do not \
             belong together, or one was cut",
            self.data_bytes
        ))
    }

    fn refuse(&self, index: &FileReader<'_>, number: u64, detail: String) -> Error {
        Error::format(index.opened.path(), self.offset_bytes + 4 * number, detail)
    }
}

/// Decodes lengths and places.
fn pairs((lengths, places): &(Vec<u8>, Vec<u8>)) -> impl Iterator<Item = (i32, i64)> {
    let lengths = lengths.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
    lengths.zip(places.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)))
}

/// The order of the tokens in an index that is a view.
#[derive(Debug)]
pub struct SequenceOrder {
    sequences: Sequences,
    /// The positions of sequences 0, [`BLOCK`], 2 × [`BLOCK`], …
    starts: Vec<u64>,
    pub tokens: u64,
    /// Whether the index lists only the beginning of the token file, in its order.
    is_beginning: bool,
    /// The first sequence that begins inside the previous one.
    pub overlap: Option<Overlap>,
    /// Hash of lengths and places.
    pub digest: u64,
}

impl SequenceOrder {
    /// Returns the memory of the positions in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.starts.capacity() * size_of::<u64>()
    }

    /// Returns the number of tokens in the token file, if the index lists only its beginning.
    pub fn cut_short(&self) -> Option<u64> {
        let Sequences { data_bytes, item_bytes, .. } = self.sequences;
        self.is_beginning.then_some(data_bytes / item_bytes)
    }

    /// Returns the position of a sequence in the order of the index.
    pub fn start(&self, index: &FileReader<'_>, sequence: u64) -> Result<u64> {
        let block = (sequence / BLOCK) as usize;
        let Some(&start) = self.starts.get(block) else { return Ok(self.tokens) };
        let before = self.block(index, block)?.into_iter().take((sequence % BLOCK) as usize);
        Ok(start + before.map(|sequence| sequence.tokens).sum::<u64>())
    }

    /// Returns the run around a token, as far as its block shows it.
    pub fn run(&self, index: &FileReader<'_>, token: u64) -> Result<TokenRun> {
        let block = self.starts.partition_point(|start| *start <= token).saturating_sub(1);
        let mut start = self.starts.get(block).copied().unwrap_or(0);
        let mut run = TokenRun { start, stop: start, first: 0 };
        for sequence in self.block(index, block)?.into_iter().filter(|sequence| sequence.tokens > 0) {
            if sequence.first != run.first + (run.stop - run.start) {
                if token < run.stop {
                    break;
                }
                run = TokenRun { start, stop: start, first: sequence.first };
            }
            start += sequence.tokens;
            run.stop = start;
        }
        if (run.start..run.stop).contains(&token) {
            return Ok(run);
        }
        // The lengths have changed since they were summed.
        let number = block as u64 * BLOCK;
        let detail =
            format!("token {token} is in none of the sequences from {number} on; the index was changed");
        Err(self.sequences.refuse(index, number, detail))
    }

    fn block(&self, index: &FileReader<'_>, block: usize) -> Result<Vec<ListedSequence>> {
        let first = block as u64 * BLOCK;
        let entries = self.sequences.read(index, first, BLOCK)?;
        let numbered = (first..).zip(pairs(&entries));
        numbered.map(|(number, entry)| self.sequences.sequence(index, number, entry, None)).collect()
    }
}
