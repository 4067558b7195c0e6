//! [`Benefit`]: whether what is read ahead of a consumer gets used.
//!
//! A consumer that takes a few neighbours and jumps, again and again, leaves behind what was read ahead of it. After
//! [`MAX_FRUITLESS`] streams in vain the next one begins only in a row of requests that is longer than the one before.

/// Streams in a row of which too little was used, up to which others begin as before.
const MAX_FRUITLESS: u32 = 2;

#[derive(Debug, Default)]
pub struct Benefit {
    /// Streams in a row of which too little was used.
    fruitless: u32,
    /// Requests since the last jump.
    row: usize,
    /// Requests between the two jumps before.
    last_row: usize,
}

impl Benefit {
    /// Notes a request, and whether it follows the one before.
    pub fn note_request(&mut self, is_next: bool) {
        if !is_next {
            self.last_row = std::mem::take(&mut self.row);
        }
        self.row += 1;
    }

    /// Notes whether the stream that another one takes the place of was of use; `None` where there was none.
    pub fn note_stream(&mut self, is_of_use: Option<bool>) {
        self.fruitless =
            is_of_use.map_or(self.fruitless, |is_of_use| if is_of_use { 0 } else { self.fruitless + 1 });
    }

    /// Returns whether the last streams were all in vain.
    pub fn is_fruitless(&self) -> bool {
        self.fruitless >= MAX_FRUITLESS
    }

    /// Returns whether a stream of whole tensors may begin with this request.
    pub fn may_begin(&self) -> bool {
        !self.is_fruitless() || self.row > self.last_row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes rows of requests, with a stream in vain in each that may begin, and returns which requests began one.
    fn begun(rows: &[usize]) -> Vec<Vec<usize>> {
        let mut benefit = Benefit::default();
        let mut in_row = |&row: &usize| {
            let begins = |&request: &usize| {
                benefit.note_request(request > 0);
                request > 0 && benefit.may_begin()
            };
            let found: Vec<_> = (0..row).filter(begins).collect();
            if !found.is_empty() {
                benefit.note_stream(Some(false));
            }
            found
        };
        rows.iter().map(&mut in_row).collect()
    }

    #[test]
    fn pairs_get_two_streams_and_a_longer_row_another_one() {
        assert_eq!(begun(&[2, 2, 2, 2, 2, 4]), [vec![1], vec![1], vec![], vec![], vec![], vec![2, 3]]);
        assert_eq!(begun(&[3, 3, 3, 3]), [vec![1, 2], vec![1, 2], vec![], vec![]]);
    }

    #[test]
    fn one_of_use_brings_the_others_back() {
        let mut benefit = Benefit::default();
        for is_of_use in [Some(false), None, Some(false)] {
            benefit.note_stream(is_of_use);
        }
        assert!(benefit.is_fruitless());
        benefit.note_stream(Some(true));
        assert!(!benefit.is_fruitless() && benefit.may_begin());
    }
}
