//! [`LeftOut`]: the series of tensors that a consumer leaves out.
//!
//! A series has one tensor of each layer: its names differ in their first number alone. Once one of its tensors was asked for,
//! all are expected, however many were passed over: layers are asked for in other orders than that of the file.
//!
//! ```text
//!   unknown ──(one was passed over)──> left out ──(asked for)──> asked for once ──(asked for again)──┐
//!      │                                  ^──────(passed over)──────┘    with all that were once     v
//!      └──(asked for)───────────────────────────────────────────────────────────────────────────> asked for
//! ```
//!
//! A rank jumps to its layers and so passes over all series. They are expected again from its second layer on.

use std::collections::HashMap;

/// The series that are known; others are expected.
#[derive(Debug, Clone, Default)]
pub struct LeftOut(HashMap<u64, Standing>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    LeftOut,
    AskedForOnce,
    AskedFor,
}

impl LeftOut {
    /// Returns whether a tensor of the series is not expected.
    pub fn has(&self, series: u64) -> bool {
        matches!(self.0.get(&series), Some(Standing::LeftOut | Standing::AskedForOnce))
    }

    /// Notes that a tensor was passed over. Returns whether the series was expected until now, and is not any longer.
    pub fn pass(&mut self, series: u64) -> bool {
        let standing = self.0.get(&series).copied();
        if standing != Some(Standing::AskedFor) {
            self.0.insert(series, Standing::LeftOut);
        }
        standing.is_none()
    }

    /// Notes that a tensor was asked for in its turn.
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

    /// Notes that a tensor that seemed to be passed over was only asked for late.
    pub fn ask_late(&mut self, series: u64) {
        self.0.insert(series, Standing::AskedFor);
    }

    /// Expects all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_of_which_nothing_was_asked_for_is_left_out_until_two_in_a_row_were() {
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
    fn what_was_asked_for_once_comes_back_with_the_first_that_was_asked_for_twice() {
        let mut left_out = LeftOut::default();
        (0..3).for_each(|series| assert!(left_out.pass(series)));
        (0..2).for_each(|series| left_out.ask(series));
        left_out.ask(0);
        assert_eq!([0, 1, 2].map(|series| left_out.has(series)), [false, false, true]);
    }

    #[test]
    fn what_came_late_was_not_left_out() {
        let mut left_out = LeftOut::default();
        left_out.pass(1);
        left_out.ask_late(1);
        assert!(!left_out.has(1));
    }
}
