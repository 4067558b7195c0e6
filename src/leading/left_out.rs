//! [`LeftOut`]: the series of tensors that a program skips.
//!
//! A series contains one tensor of each layer: its names differ only in their first number. Once the program has
//! requested a tensor of an unknown series, all tensors of the series are predicted, however many of them it skips.
//! This allows for programs that request layers in another order than the file's.
//!
//! ```text
//!   unknown ──(skipped)──> left out ──(requested)──> requested once ──(requested again)──┐
//!      │                       ^──────(skipped)────────────┘   with all requested once   v
//!      └──(requested)──────────────────────────────────────────────────────────────> requested
//! ```
//!
//! A rank that jumps to its own layers skips all series on the way. They are predicted again from its second layer on.

use std::collections::HashMap;

/// The known series. Unknown series are predicted.
#[derive(Debug, Clone, Default)]
pub struct LeftOut(HashMap<u64, Standing>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    LeftOut,
    AskedForOnce,
    AskedFor,
}

impl LeftOut {
    /// Returns whether the tensors of a series are not predicted.
    pub fn has(&self, series: u64) -> bool {
        matches!(self.0.get(&series), Some(Standing::LeftOut | Standing::AskedForOnce))
    }

    /// Notes that the program skipped a tensor. Returns whether the series was unknown, and therefore predicted, until
    /// now.
    pub fn pass(&mut self, series: u64) -> bool {
        let standing = self.0.get(&series).copied();
        if standing != Some(Standing::AskedFor) {
            self.0.insert(series, Standing::LeftOut);
        }
        standing.is_none()
    }

    /// Notes that the program requested a tensor in its turn.
    pub fn ask(&mut self, series: u64) {
        match self.0.get_mut(&series) {
            Some(standing @ Standing::LeftOut) => *standing = Standing::AskedForOnce,
            Some(Standing::AskedForOnce) => {
                let once = self.0.values_mut().filter(|standing| **standing == Standing::AskedForOnce);
                once.for_each(|standing| *standing = Standing::AskedFor);
            }
            _ => self.ask_late(series),
        }
    }

    /// Notes a late request for a tensor that seemed to be skipped.
    pub fn ask_late(&mut self, series: u64) {
        self.0.insert(series, Standing::AskedFor);
    }

    /// Predicts all series again.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_series_is_left_out_until_two_requests_in_a_row() {
        let mut left_out = LeftOut::default();
        assert!(left_out.pass(1));
        assert!(left_out.pass(2));
        assert!(!left_out.pass(2), "it was known");
        left_out.ask(1);
        assert!(left_out.has(1));
        left_out.pass(1);
        left_out.ask(1);
        assert!(left_out.has(1), "every second one");
        left_out.ask(1);
        assert!(!left_out.has(1) && left_out.has(2));
        assert!(!left_out.pass(1), "it is asked for");
    }

    #[test]
    fn series_requested_once_return_with_the_first_one_requested_twice() {
        let mut left_out = LeftOut::default();
        (0..3).for_each(|series| assert!(left_out.pass(series)));
        (0..2).for_each(|series| left_out.ask(series));
        left_out.ask(0);
        assert_eq!([0, 1, 2].map(|series| left_out.has(series)), [false, false, true]);
    }

    #[test]
    fn a_series_that_is_requested_late_is_not_left_out() {
        let mut left_out = LeftOut::default();
        left_out.pass(1);
        left_out.ask_late(1);
        assert!(!left_out.has(1));
    }
}
