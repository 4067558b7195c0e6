//! Keys: numbers derived from a seed, which determine an order.

use super::ORDER_VERSION;
use crate::mix::{GAMMA, mix};

/// A node in a tree of keys: seed, then source, then epoch, and so on. Keys of different paths are
/// unrelated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    pub const fn of_seed(seed: u64) -> Self {
        Self(mix(GAMMA.wrapping_mul(ORDER_VERSION as u64))).derive(seed)
    }

    /// Returns the key of a child. All children of a key have distinct keys.
    #[must_use]
    pub const fn derive(self, child: u64) -> Self {
        Self(mix(self.0 ^ mix(child.wrapping_add(GAMMA))).wrapping_add(GAMMA))
    }

    /// Returns the word with this number in the key's stream of random words (splitmix64).
    pub const fn word(self, number: u64) -> u64 {
        mix(self.0.wrapping_add(number.wrapping_add(1).wrapping_mul(GAMMA)))
    }
}

/// Uniform draws with replacement, by number: draw 7 does not need draws 0 to 6.
#[derive(Debug, Clone)]
pub struct Draws {
    key: Key,
    retries: Key,
    below: u64,
}

impl Draws {
    /// Creates draws from `[0, below)`; `below` must be at least 1.
    pub const fn new(key: Key, below: u64) -> Self {
        Self { key: key.derive(0), retries: key.derive(1), below }
    }

    /// Returns a draw. It is unbiased: Lemire's multiplication with rejection (arXiv:1805.10941).
    pub fn at(&self, number: u64) -> u64 {
        let mut word = self.key.word(number);
        let mut attempt = 0;
        loop {
            let product = u128::from(word) * u128::from(self.below);
            let low = product as u64;
            // Computing the threshold takes a division, but the threshold lies below `below`, so it is rarely needed.
            if low >= self.below || low >= self.below.wrapping_neg() % self.below {
                return (product >> 64) as u64;
            }
            word = self.retries.derive(number).word(attempt);
            attempt += 1;
        }
    }
}
