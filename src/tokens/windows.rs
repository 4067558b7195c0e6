//! Windows of fixed length on the tokens: from a window's number to its tokens. Nothing is stored; every answer is
//! arithmetic.

use crate::error::{Error, Result};
use crate::words::words;

words! {
    /// The targets of a window.
    pub enum Target as "target" {
        /// `x = t[s:s+T]`, `y = t[s+1:s+T+1]`; windows begin every `stride` tokens.
        Shift = "shift",
        /// The same over separate blocks of T+1 tokens: the stride is T+1 unless given.
        Block = "block",
        /// `x = t[s:s+T]` and no targets.
        None = "none",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    pub sequence_length: u64,
    stride: u64,
    pub target: Target,
    /// The last token where a window can begin.
    last_start: u64,
}

impl Windows {
    /// Creates windows of `sequence_length` tokens over `corpus_tokens` tokens.
    pub fn new(corpus_tokens: u64, sequence_length: u64, stride: u64, target: Target) -> Result<Self> {
        if sequence_length == 0 || stride == 0 {
            return Err(Error::argument(format!(
                "sequence_length and stride must be at least 1, not {sequence_length} and {stride}"
            )));
        }
        let span = span_tokens(sequence_length, target)?;
        let Some(last_start) = corpus_tokens.checked_sub(span) else {
            return Err(Error::argument(format!(
                "a window takes {span} tokens, the corpus has {corpus_tokens}; use a shorter sequence_length"
            )));
        };
        Ok(Self { sequence_length, stride, target, last_start })
    }

    pub fn count(&self) -> u64 {
        self.last_start / self.stride + 1
    }

    /// Returns the number of tokens where a window can begin, whether multiples of the stride or not. `None` if it
    /// exceeds 64 bits.
    pub fn starts(&self) -> Option<u64> {
        self.last_start.checked_add(1)
    }

    /// Returns the tokens of window `index`, including targets, as `(start, stop)`.
    pub fn tokens(&self, index: u64) -> Result<(u64, u64)> {
        if index >= self.count() {
            return Err(Error::index(format!("window {index} of {}", self.count())));
        }
        self.tokens_from(index * self.stride)
    }

    /// Returns the tokens of the window that begins at `start`, including targets, as `(start, stop)`.
    pub fn tokens_from(&self, start: u64) -> Result<(u64, u64)> {
        if start > self.last_start {
            let detail = format!("a window from token {start}; the last one begins at {}", self.last_start);
            return Err(Error::index(detail));
        }
        // No overflow: `new` ensured that the last window ends inside the corpus.
        Ok((start, start + self.sequence_length + u64::from(self.target != Target::None)))
    }
}

/// Returns the number of tokens that a window spans.
fn span_tokens(sequence_length: u64, target: Target) -> Result<u64> {
    sequence_length
        .checked_add(u64::from(target != Target::None))
        .ok_or_else(|| Error::argument(format!("sequence_length {sequence_length} is too large")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(corpus: u64, length: u64, stride: u64, target: Target) -> Vec<(u64, u64)> {
        let windows = Windows::new(corpus, length, stride, target).expect("valid");
        (0..windows.count()).map(|index| windows.tokens(index).expect("in range")).collect()
    }

    #[test]
    fn counts_and_ranges() {
        assert_eq!(windows(10, 4, 1, Target::Shift).len(), 6); // N - T
        assert_eq!(windows(10, 4, 4, Target::Shift), [(0, 5), (4, 9)]);
        assert_eq!(windows(10, 4, 5, Target::Block), [(0, 5), (5, 10)]);
        assert_eq!(windows(10, 4, 4, Target::None), [(0, 4), (4, 8)]);
        assert_eq!(windows(5, 4, 1, Target::Shift), [(0, 5)]);
    }

    #[test]
    fn invalid_windows_are_rejected() {
        for (corpus, length, stride) in [(4, 4, 1), (0, 1, 1), (10, 0, 1), (10, 4, 0), (10, u64::MAX, 1)] {
            assert!(
                Windows::new(corpus, length, stride, Target::Shift).is_err(),
                "{corpus} {length} {stride}"
            );
        }
        let windows = Windows::new(u64::MAX, 1, u64::MAX - 2, Target::Shift).expect("valid");
        assert_eq!((windows.count(), windows.tokens(1)), (2, Ok((u64::MAX - 2, u64::MAX))));
        assert!(windows.tokens(2).is_err());
    }
}
