//! [`Stride`]: every n-th layer.
//!
//! ```text
//!   places   0 1 . . . . 6 7 . . . . 12 13 . . . . 18 19
//!            run   gap   run   gap
//!                                    └── again after the same run and gap: just such runs are expected from here on
//! ```
//!
//! The first request that does not fit ends it.

use std::ops::Range;

/// Runs of tensors that were asked for one behind another, and the gaps between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stride {
    /// Where the present run began.
    start: usize,
    /// The tensors of the run before and of the gap behind it.
    before: Option<(usize, usize)>,
    /// Whether those before were as many.
    is_regular: bool,
}

impl Stride {
    /// The stride of a consumer that begins at a place.
    pub fn at(start: usize) -> Self {
        Self { start, ..Self::default() }
    }

    /// Returns whether the tensor of a place will be passed over.
    pub fn leaves_out(&self, place: usize) -> bool {
        let Some((run, gap)) = self.before.filter(|_| self.is_regular) else { return false };
        place.checked_sub(self.start).is_some_and(|behind| behind % (run + gap) >= run)
    }

    /// Notes a request that went past the places `between` it and the last one. Shorter gaps than `least_gap` do not count.
    /// Returns whether the stride shows for the first time.
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

    /// Asks for places, and returns at which of them the stride showed.
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
    fn every_third_layer_shows_at_the_third_one() {
        let (stride, shown) = asked(&[0, 1, 6, 7, 12], 2);
        assert_eq!(shown, [12]);
        assert_eq!(left_out(&stride, 12..20), [14, 15, 16, 17]);
        let (stride, shown) = asked(&[0, 1, 6, 7, 12, 13, 18, 19], 2);
        assert_eq!(shown, [12], "once");
        assert_eq!(left_out(&stride, 18..26), [20, 21, 22, 23]);
    }

    #[test]
    fn a_request_that_does_not_fit_ends_it() {
        let others: [&[usize]; 4] = [&[14], &[13, 18, 24], &[13, 20], &[2]];
        for other in others {
            let (stride, _) = asked(&[&[0, 1, 6, 7, 12], other].concat(), 2);
            assert_eq!(left_out(&stride, 0..40), [0; 0], "{other:?}");
        }
    }

    #[test]
    fn short_gaps_are_none() {
        assert_eq!(asked(&[1, 5, 9, 13, 17], 4).1, [0; 0]);
        assert_eq!(asked(&[0, 1, 2, 3, 4], 0).1, [0; 0]);
        assert_eq!(asked(&[9, 7, 5, 3, 1], 0).1, [0; 0], "backwards");
    }

    #[test]
    fn what_lies_before_the_run_is_not_left_out() {
        let (stride, _) = asked(&[0, 3, 6], 1);
        assert_eq!(left_out(&stride, 0..10), [7, 8]);
    }
}
