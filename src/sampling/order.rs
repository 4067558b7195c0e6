//! The order in which an epoch visits the windows of a source.

use super::blocked::Blocked;
use super::key::{Draws, Key};
use super::permutation::Permutation;
use crate::error::Result;
use crate::words::words;

words! {
    /// An order by its name.
    pub enum OrderKind as "order" {
        /// Each window once, at random.
        Shuffled = "shuffled",
        /// Windows that start at any offset, drawn with replacement.
        Random = "random",
        /// Each window once, in file order.
        Sequential = "sequential",
        /// Each window once; see [`super::blocked`].
        Blocked = "blocked",
    }
}

/// An order: a pure function of seed, epoch and index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Shuffled,
    Random,
    Sequential,
    Blocked { mixing_radius_windows: u64 },
}

impl Order {
    /// Parses the order's word. Only [`OrderKind::Blocked`] uses the radius.
    pub fn from_word(word: &str, mixing_radius_windows: u64) -> Result<Self> {
        Ok(match OrderKind::from_word(word)? {
            OrderKind::Shuffled => Self::Shuffled,
            OrderKind::Random => Self::Random,
            OrderKind::Sequential => Self::Sequential,
            OrderKind::Blocked => Self::Blocked { mixing_radius_windows },
        })
    }
}

/// An epoch of a source, with its keys.
#[derive(Debug, Clone)]
pub enum EpochOrder {
    Shuffled(Box<Permutation>),
    Random(Draws),
    Sequential,
    Blocked(Box<Blocked>),
}

impl EpochOrder {
    /// Creates the order. `windows` and, for random starts, `starts` must lie in `1..=MAX_LENGTH`.
    pub(super) fn new(order: Order, windows: u64, starts: u64, key: Key) -> Self {
        match order {
            Order::Shuffled => Self::Shuffled(Box::new(Permutation::keyed(windows, key))),
            Order::Random => Self::Random(Draws::new(key, starts)),
            Order::Sequential => Self::Sequential,
            Order::Blocked { mixing_radius_windows } => {
                Self::Blocked(Box::new(Blocked::new(windows, mixing_radius_windows, key)))
            }
        }
    }

    /// Returns the window at `index` of the epoch, or its first token for random starts.
    #[inline]
    pub fn at(&mut self, index: u64) -> u64 {
        match self {
            Self::Shuffled(permutation) => permutation.at(index),
            Self::Random(draws) => draws.at(index),
            Self::Sequential => index,
            Self::Blocked(blocked) => blocked.at(index),
        }
    }
}
