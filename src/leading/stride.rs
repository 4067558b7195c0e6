//! [`Stride`]: recognises a program that takes every n-th layer.
//!
//! ```text
//!   places   0 1 . . . . 6 7 . . . . 12 13 . . . . 18 19
//!            run   gap   run   gap
//!                                    └── the same run and gap a second time: predicts just such runs from here on
//! ```
//!
//! The first request that does not fit ends the stride.

use std::ops::Range;

/// Runs of adjacent tensors that the program requested, and the gaps between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stride {
    /// The first place of the current run.
    start: usize,
    /// Lengths of the previous run and of the gap after it.
    before: Option<(usize, usize)>,
    /// Whether the run and gap before these had the same lengths.
    is_regular: bool,
}

impl Stride {
    /// Makes the stride of a program that begins at a place.
    pub fn at(start: usize) -> Self {
        Self { start, ..Self::default() }
    }

    /// Returns whether the program is predicted to skip the tensor at a place.
    pub fn leaves_out(&self, place: usize) -> bool {
        let Some((run, gap)) = self.before.filter(|_| self.is_regular) else { return false };
        place.checked_sub(self.start).is_some_and(|behind| behind % (run + gap) >= run)
    }

    /// Notes a request that skipped the places `between` it and the previous request. Gaps shorter than `least_gap` do
    /// not count. Returns whether this request reveals the stride.
    pub fn note(&mut self, between: &Range<usize>, least_gap: usize) -> bool {
        let place = between.end;
        if between.start == place && !self.leaves_out(place) {
            return false;
        }
        let gap = between.len();
        let step = (gap >= least_gap.max(1)).then(|| (between.start.saturating_sub(self.start), gap));
        let is_regular = step.is_some() && step == self.before;
        let before = std::mem::replace(self, Self { start: place, before: step, is_regular });
        is_regular && !before.is_regular
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests places. Returns the places that revealed the stride.
    fn asked(places: &[usize], least_gap: usize) -> (Stride, Vec<usize>) {
        let mut stride = Stride::at(places[0]);
        let shown = places.windows(2).filter(|pair| stride.note(&(pair[0] + 1..pair[1]), least_gap));
        let shown = shown.map(|pair| pair[1]).collect();
        (stride, shown)
    }

    fn left_out(stride: &Stride, places: Range<usize>) -> Vec<usize> {
        places.filter(|&place| stride.leaves_out(place)).collect()
    }

    #[test]
    fn every_third_layer_is_recognised_at_the_third_run() {
        let (stride, shown) = asked(&[0, 1, 6, 7, 12], 2);
        assert_eq!(shown, [12]);
        assert_eq!(left_out(&stride, 12..20), [14, 15, 16, 17]);
        let (stride, shown) = asked(&[0, 1, 6, 7, 12, 13, 18, 19], 2);
        assert_eq!(shown, [12], "once");
        assert_eq!(left_out(&stride, 18..26), [20, 21, 22, 23]);
    }

    #[test]
    fn a_request_that_does_not_fit_ends_the_stride() {
        let others: [&[usize]; 4] = [&[14], &[13, 18, 24], &[13, 20], &[2]];
        for other in others {
            let (stride, _) = asked(&[&[0, 1, 6, 7, 12], other].concat(), 2);
            assert_eq!(left_out(&stride, 0..40), [0; 0], "{other:?}");
        }
    }

    #[test]
    fn short_gaps_do_not_count() {
        assert_eq!(asked(&[1, 5, 9, 13, 17], 4).1, [0; 0]);
        assert_eq!(asked(&[0, 1, 2, 3, 4], 0).1, [0; 0]);
        assert_eq!(asked(&[9, 7, 5, 3, 1], 0).1, [0; 0], "backwards");
    }

    #[test]
    fn places_before_the_run_are_not_skipped() {
        let (stride, _) = asked(&[0, 3, 6], 1);
        assert_eq!(left_out(&stride, 0..10), [7, 8]);
    }
}
