//! A keyed permutation of `[0, n)`: constant memory, any `n` to 2^63, invertible.
//!
//! It is a Feistel network over a rectangle of `rows x columns` cells. `columns` is a power of two, and `rows` is the
//! smallest number that makes room for `n`. The cells from `n` on make up less than one row. If a step ends in one of
//! them, the network is applied again until it ends below `n` (cycle walking: Black, Rogaway: Ciphers with arbitrary
//! finite domains, 2002). For large `n` this almost never happens.

use super::key::Key;
use crate::error::{Error, Result};

/// Maximum `n`.
pub const MAX_LENGTH: u64 = 1 << 63;

/// Minimum length for which [`PAIRS_LARGE`] pairs of rounds suffice.
const LARGE: u64 = 4097;
const PAIRS_LARGE: usize = 4;
/// In a small rectangle a round has few outcomes, so more rounds are needed to reach every permutation equally often.
const PAIRS_SMALL: usize = 8;

#[derive(Debug, Clone, Copy, Default)]
struct Round {
    whiten: u64,
    factor: u64,
}

impl Round {
    /// Returns a number in `[0, below)` that depends on `half` irregularly.
    #[inline]
    fn apply(self, half: u64, below: u64) -> u64 {
        let word = (half ^ self.whiten).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let word = (word ^ (word >> 32)).wrapping_mul(self.factor);
        ((u128::from(word) * u128::from(below)) >> 64) as u64
    }
}

/// A permutation of `[0, n)`.
#[derive(Debug, Clone)]
pub struct Permutation {
    length: u64,
    rows: u64,
    column_bits: u32,
    pairs: usize,
    rounds: [[Round; 2]; PAIRS_SMALL],
}

impl Permutation {
    /// Creates the order in which an epoch visits the only, or the first, source of a `Schedule`.
    pub fn new(length: u64, seed: u64, epoch: u64) -> Result<Self> {
        check_length(length)?;
        Ok(Self::keyed(length, Key::of_seed(seed).derive(0).derive(epoch)))
    }

    /// Creates a permutation. `length` must lie in `1..=MAX_LENGTH`.
    pub(super) fn keyed(length: u64, key: Key) -> Self {
        debug_assert!((1..=MAX_LENGTH).contains(&length));
        let bits = u64::BITS - (length - 1).leading_zeros();
        let column_bits = bits.div_ceil(2);
        let rows = ((length - 1) >> column_bits) + 1;
        let pairs = if length < LARGE { PAIRS_SMALL } else { PAIRS_LARGE };
        let mut rounds = [[Round::default(); 2]; PAIRS_SMALL];
        let mut number = 0;
        for round in rounds[..pairs].as_flattened_mut() {
            *round = Round { whiten: key.word(number), factor: key.word(number + 1) | 1 };
            number += 2;
        }
        Self { length, rows, column_bits, pairs, rounds }
    }

    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns the image of `index`, which must lie below the length.
    pub fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.length);
        let mut cell = index;
        loop {
            cell = self.forward(cell);
            if cell < self.length {
                return cell;
            }
        }
    }

    /// Returns the index whose image is `value`, which must lie below the length.
    pub fn inverse(&self, value: u64) -> u64 {
        debug_assert!(value < self.length);
        let mut cell = value;
        loop {
            cell = self.backward(cell);
            if cell < self.length {
                return cell;
            }
        }
    }

    fn forward(&self, cell: u64) -> u64 {
        let columns = 1 << self.column_bits;
        let (mut row, mut column) = (cell >> self.column_bits, cell & (columns - 1));
        for [by_column, by_row] in &self.rounds[..self.pairs] {
            row += by_column.apply(column, self.rows);
            // Compute the remainder with a minimum, because a branch would be unpredictable.
            row = row.min(row.wrapping_sub(self.rows));
            column = (column + by_row.apply(row, columns)) & (columns - 1);
        }
        row << self.column_bits | column
    }

    fn backward(&self, cell: u64) -> u64 {
        let columns = 1 << self.column_bits;
        let (mut row, mut column) = (cell >> self.column_bits, cell & (columns - 1));
        for [by_column, by_row] in self.rounds[..self.pairs].iter().rev() {
            column = column.wrapping_sub(by_row.apply(row, columns)) & (columns - 1);
            row = row.wrapping_sub(by_column.apply(column, self.rows));
            row = row.min(row.wrapping_add(self.rows));
        }
        row << self.column_bits | column
    }
}

/// Rejects lengths that no permutation has.
pub(super) fn check_length(length: u64) -> Result<()> {
    if (1..=MAX_LENGTH).contains(&length) {
        return Ok(());
    }
    Err(Error::argument(format!("a permutation has 1 to 2^63 elements, not {length}")))
}
