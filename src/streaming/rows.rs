//! [`Rows`]: how many neighbours a consumer takes before it jumps elsewhere.
//!
//! A consumer that takes the same number of neighbours at one place after the other (the three matrices of an expert, say)
//! takes as many at the next place, wherever that is.
//!
//! ```text
//!   places   40 41 42 . . 7 8 9 . . . 85 86 87
//!            row          row         └── again after two rows of three: three are expected, and nothing behind them
//! ```
//!
//! The first row of another length ends it, but for one that is some such rows one behind the other.

/// Rows of the same length after which the next one is expected to be as long.
const ALIKE: u32 = 2;

/// Rows of requests that follow one another.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    /// Requests since the last jump.
    row: usize,
    /// Requests between the two jumps before.
    last_row: usize,
    /// The length that rows seem to have.
    usual_row: usize,
    /// Rows of that length, one after the other.
    alike: u32,
    /// The place at which the present row is expected to end; `None` where nothing shows that.
    pub end: Option<usize>,
}

impl Rows {
    /// Notes a request for a place, and whether it follows the one before. The tensors of the places `behind` it may be
    /// asked for.
    pub fn note(&mut self, place: usize, is_next: bool, mut behind: impl Iterator<Item = usize>) {
        if is_next {
            self.row += 1;
            self.end = self.end.filter(|&end| place < end);
            return;
        }
        let row = std::mem::replace(&mut self.row, 1);
        let is_alike = row == self.usual_row || (self.usual_row > 1 && row.is_multiple_of(self.usual_row));
        (self.usual_row, self.alike) = if is_alike { (self.usual_row, self.alike + 1) } else { (row, 1) };
        self.last_row = row;
        let last = self.usual_row.checked_sub(2).map_or(Some(place), |others| behind.nth(others));
        self.end = last.filter(|_| self.alike >= ALIKE).map(|last| last + 1);
    }

    /// Returns whether the present row is longer than the one before.
    pub fn is_longer(&self) -> bool {
        self.row > self.last_row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes rows of requests, each a hundred places behind the one before, and returns how many are expected to follow after
    /// each of the last row. Every second place is passed over.
    fn expected(rows: &[usize]) -> Vec<Option<usize>> {
        let mut noted = Rows::default();
        let mut found = Vec::new();
        for (number, &row) in rows.iter().enumerate() {
            let places = (100 * number..).step_by(2).take(row);
            let follow = |place: usize| {
                noted.note(place, !place.is_multiple_of(100), (place + 2..1000).step_by(2));
                noted.end.map(|end| (place + 1..end).filter(|place| place % 2 == 0).count())
            };
            found = places.map(follow).collect();
        }
        found
    }

    #[test]
    fn after_two_rows_of_three_the_next_one_has_three() {
        assert_eq!(expected(&[3]), [None; 3]);
        assert_eq!(expected(&[3, 3]), [None; 3]);
        assert_eq!(expected(&[3, 3, 3]), [Some(2), Some(1), Some(0)]);
        assert_eq!(expected(&[7, 3, 3, 3]), [Some(2), Some(1), Some(0)]);
        assert_eq!(expected(&[1, 1, 1]), [Some(0)]);
    }

    #[test]
    fn a_row_of_another_length_ends_it() {
        assert_eq!(expected(&[3, 3, 5]), [Some(2), Some(1), Some(0), None, None]);
        assert_eq!(expected(&[3, 3, 5, 3]), [None; 3]);
        assert_eq!(expected(&[3, 3, 2, 3]), [None; 3]);
        assert_eq!(expected(&[3, 3, 2, 3, 3, 1]), [Some(2)]);
        assert_eq!(expected(&[1, 1, 2, 1]), [None]);
    }

    #[test]
    fn two_rows_one_behind_the_other_are_as_usual() {
        assert_eq!(expected(&[3, 6, 3]), [Some(2), Some(1), Some(0)]);
        assert_eq!(expected(&[3, 3, 6, 1]), [Some(2)]);
        assert_eq!(expected(&[6, 3, 3]), [None; 3]);
    }

    #[test]
    fn of_a_row_that_the_file_cuts_nothing_is_known() {
        let mut rows = Rows::default();
        for place in [0, 1, 4, 5, 8] {
            rows.note(place, place % 4 == 1, place + 1..9);
        }
        assert_eq!(rows.end, None);
    }

    #[test]
    fn a_row_is_longer_than_the_one_before() {
        let mut rows = Rows::default();
        let is_longer = |place| {
            rows.note(place, place % 4 > 0, 0..0);
            rows.is_longer()
        };
        assert_eq!([0, 1, 4, 5, 6].map(is_longer), [true, true, false, false, true]);
    }
}
