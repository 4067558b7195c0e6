//! [`Benefit`]: whether the program uses the tensors that streams read ahead.
//!
//! A program that takes a few neighbours and then jumps, again and again, leaves most of the read-ahead unused. After
//! [`MAX_FRUITLESS`] wasted streams, the next one begins only in a [row](super::rows) of requests that is longer than
//! all remembered rows. If rows have the same length, a stream reads exactly one row.

use super::file_tensors::FileTensors;
use super::guess::{Guess, Request};
use crate::streaming::plan::REQUEST_BYTES;

/// Number of consecutive wasted streams after which another one needs an unusually long row.
const MAX_FRUITLESS: u32 = 2;

#[derive(Debug, Default)]
pub struct Benefit {
    /// Number of consecutive wasted streams. The program used too little of each.
    fruitless: u32,
}

impl Benefit {
    /// Notes whether the previous stream was useful; `None` if there was none.
    pub fn note_stream(&mut self, is_of_use: Option<bool>) {
        self.fruitless =
            is_of_use.map_or(self.fruitless, |is_of_use| if is_of_use { 0 } else { self.fruitless + 1 });
    }

    /// Returns whether the last streams were all wasted.
    pub fn is_fruitless(&self) -> bool {
        self.fruitless >= MAX_FRUITLESS
    }

    /// Returns whether a stream of whole tensors may begin with this request.
    pub fn may_begin(&self, tensors: &FileTensors, guess: &Guess, request: Request) -> bool {
        let Request { place, is_next, row_end, .. } = request;
        let Some(end) = row_end else {
            return is_next && (guess.uses.has_threads || !self.is_fruitless() || guess.rows.is_longer());
        };
        // A row smaller than one page-fault window needs no read-ahead.
        !is_next && end > place + 1 && tensors.bytes_of(place..end, guess.order) > REQUEST_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::natural::NameKinds;

    /// Makes a file of tensors of `len` bytes, with a hundred places for each row.
    fn file(rows: usize, len: u64) -> FileTensors {
        let count = 100 * rows as u64;
        let names = vec![NameKinds { kind: 0, series: 0 }; count as usize];
        FileTensors::new((0..count).map(|number| (number * len, len)).collect(), names, vec![])
            .expect("memory")
    }

    /// Requests rows of tensors of `len` bytes. Each row wastes a stream, if one may begin. Returns the requests that
    /// could begin a stream.
    fn begun(rows: &[usize], len: u64) -> Vec<Vec<usize>> {
        let tensors = file(rows.len(), len);
        let (mut benefit, mut guess) = (Benefit::default(), Guess::new(&tensors).expect("memory"));
        let mut in_row = |(at, &row): (usize, &usize)| {
            // From the last row to the first, so that each jump goes backwards.
            let first = 100 * (rows.len() - 1 - at);
            let begins = |&request: &usize| {
                let thread = std::thread::current().id();
                let request = guess.note(&tensors, first + request, None, thread);
                benefit.may_begin(&tensors, &guess, request)
            };
            let found: Vec<_> = (0..row).filter(begins).collect();
            if !found.is_empty() {
                benefit.note_stream(Some(false));
            }
            found
        };
        rows.iter().enumerate().map(&mut in_row).collect()
    }

    #[test]
    fn after_two_wasted_streams_only_longer_rows_get_one() {
        let found = begun(&[2, 3, 2, 3, 2, 4], 1);
        assert_eq!(found, [vec![1], vec![1, 2], vec![], vec![], vec![], vec![3]]);
    }

    #[test]
    fn small_rows_of_the_usual_length_are_left_to_page_faults() {
        assert_eq!(begun(&[2, 2, 2, 2], REQUEST_BYTES / 2), [vec![1], vec![1], vec![], vec![]]);
        assert_eq!(begun(&[2, 2, 2, 2], REQUEST_BYTES), [vec![1], vec![1], vec![0], vec![0]]);
    }

    #[test]
    fn a_useful_stream_allows_further_streams() {
        let mut benefit = Benefit::default();
        for is_of_use in [Some(false), None, Some(false)] {
            benefit.note_stream(is_of_use);
        }
        assert!(benefit.is_fruitless());
        benefit.note_stream(Some(true));
        assert!(!benefit.is_fruitless());
    }
}
