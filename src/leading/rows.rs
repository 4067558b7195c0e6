//! [`Rows`]: counts how many neighbouring tensors a program takes before it jumps elsewhere, and whether its jumps stay
//! within layers.
//!
//! A program that takes the same number of neighbours at each place is predicted to do so at the next place, wherever
//! that is. For example, a program may take the three matrices of one expert after another.
//!
//! ```text
//!   places   40 41 42 . . 7 8 9 . . . 85 86 87
//!            row          row         └── after two rows of three: predicts three tensors, and none after them
//! ```
//!
//! The first row of another length ends this prediction. A row whose length is a multiple does not, because it is
//! several usual rows, one after the other. A jump within a layer, or to the next layer, predicts no end of the row:
//! the program will request the other tensors there, too. A program that repeatedly jumps back within layers uses the
//! tensors of each layer in an order that differs from their places.

/// Number of rows of equal length after which the next one is predicted to be as long.
const ALIKE: u32 = 2;
/// Number of jumps back within layers, minus long jumps, after which layers count as shuffled.
const SOME_JUMPS_BACK: u32 = 2;
/// Upper bound of that number.
const MANY_JUMPS_BACK: u32 = 8;
/// Number of rows that are remembered.
const LAST_ROWS: usize = 8;

/// The rows of a program: sequences of requests for adjacent tensors.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    /// The place of the last request.
    place: usize,
    /// Number of requests since the last jump.
    row: usize,
    /// Lengths of the previous rows, the latest first.
    before: [usize; LAST_ROWS],
    /// The usual length of the rows.
    usual: usize,
    /// Number of consecutive rows of that length.
    alike: u32,
    /// Number of jumps back within layers, minus long jumps.
    jumps_back: u32,
    /// The place at which the current row is predicted to end; `None` without a prediction.
    pub end: Option<usize>,
}

impl Rows {
    /// Returns the knowledge that still applies when the program continues in another file.
    pub fn in_next_file(&self) -> Self {
        Self { jumps_back: self.jumps_back, ..Self::default() }
    }

    /// Notes a request for a place. `is_next` says whether it follows the previous one. After a jump of at most `near`
    /// places, no end of the row is predicted. `behind` yields the later places whose tensors may be requested.
    pub fn note(
        &mut self,
        place: usize,
        is_next: bool,
        near: usize,
        mut behind: impl Iterator<Item = usize>,
    ) {
        let last = std::mem::replace(&mut self.place, place);
        self.end = self.end.filter(|&end| is_next && place < end);
        if is_next {
            self.row += 1;
            return;
        }
        let jump = last.abs_diff(place);
        if jump > near {
            self.jumps_back = self.jumps_back.saturating_sub(1);
        } else if place < last && jump <= near / 2 {
            self.jumps_back = MANY_JUMPS_BACK.min(self.jumps_back + 1);
        }
        let row = std::mem::replace(&mut self.row, 1);
        let is_alike = row == self.usual || (self.usual > 1 && row.is_multiple_of(self.usual));
        (self.usual, self.alike) = if is_alike { (self.usual, self.alike + 1) } else { (row, 1) };
        self.before.rotate_right(1);
        self.before[0] = row;
        if self.alike >= ALIKE
            && let Some(others) = self.usual.checked_sub(2)
            && jump > near
        {
            self.end = behind.nth(others).map(|last| last + 1);
        }
    }

    /// Returns whether the program requests the tensors of each layer in an order that differs from their places.
    pub fn is_shuffled(&self) -> bool {
        self.jumps_back >= SOME_JUMPS_BACK
    }

    /// Returns whether the current row is longer than all remembered rows.
    pub fn is_longer(&self) -> bool {
        self.before.iter().all(|&before| self.row > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes rows of requests, each a hundred places after the previous one, and skips every second place. Returns how
    /// many requests are predicted after each request of the last row.
    fn expected(rows: &[usize]) -> Vec<Option<usize>> {
        let mut noted = Rows::default();
        let mut found = Vec::new();
        for (number, &row) in rows.iter().enumerate() {
            let places = (100 * number..).step_by(2).take(row);
            let follow = |place: usize| {
                noted.note(place, !place.is_multiple_of(100), 2, (place + 2..1000).step_by(2));
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
        assert_eq!(expected(&[1, 1, 1, 1]), [None]);
    }

    #[test]
    fn a_row_of_another_length_ends_the_prediction() {
        assert_eq!(expected(&[3, 3, 5]), [Some(2), Some(1), Some(0), None, None]);
        assert_eq!(expected(&[3, 3, 5, 3]), [None; 3]);
        assert_eq!(expected(&[3, 3, 2, 3]), [None; 3]);
        assert_eq!(expected(&[3, 3, 2, 3, 3, 1]), [Some(2)]);
        assert_eq!(expected(&[1, 1, 2, 1]), [None]);
    }

    #[test]
    fn two_adjacent_rows_have_the_usual_length() {
        assert_eq!(expected(&[3, 6, 3]), [Some(2), Some(1), Some(0)]);
        assert_eq!(expected(&[3, 3, 6, 1]), [Some(2)]);
        assert_eq!(expected(&[6, 3, 3]), [None; 3]);
    }

    #[test]
    fn a_row_cut_by_the_end_of_the_file_has_no_predicted_end() {
        let mut rows = Rows::default();
        for place in [0, 1, 100, 101, 200] {
            rows.note(place, place % 100 == 1, 2, place + 1..201);
        }
        assert_eq!(rows.end, None);
    }

    #[test]
    fn a_short_jump_predicts_no_end() {
        let end = |place, near| {
            let mut rows = Rows::default();
            for place in [0, 1, 100, 101] {
                rows.note(place, place % 100 == 1, near, place + 1..999);
            }
            rows.note(place, false, near, place + 1..999);
            rows.end
        };
        assert_eq!([end(121, 20), end(300, usize::MAX), end(81, 20)], [None; 3]);
        assert_eq!([end(122, 20), end(80, 20)], [Some(124), Some(82)]);
    }

    #[test]
    fn layers_are_shuffled_while_jumps_back_are_short() {
        let noted = |places: &[usize]| {
            let mut rows = Rows::default();
            for pair in [&[0], places].concat().windows(2) {
                rows.note(pair[1], pair[1] == pair[0] + 1, 16, 0..0);
            }
            rows
        };
        let is_shuffled = |places: &[usize]| noted(places).is_shuffled();
        assert!(noted(&[7, 5, 6, 4]).in_next_file().is_shuffled());
        assert!(is_shuffled(&[7, 5, 6, 4]));
        assert!(is_shuffled(&[7, 5, 6, 4, 2, 3, 0, 1, 15]));
        assert!(!is_shuffled(&[7, 5, 40, 42]));
        assert!(!is_shuffled(&[7, 0, 40, 33, 70, 63, 100, 93]), "each is followed by one elsewhere");
        assert!(!is_shuffled(&[50, 51, 40, 41, 30, 31]), "layers from the last to the first");
    }

    #[test]
    fn a_row_is_longer_than_all_remembered_rows() {
        let mut rows = Rows::default();
        let longest = |rows: &mut Rows, row: usize| {
            let is_longer = |place| {
                rows.note(place, place > 0, 2, 0..0);
                rows.is_longer()
            };
            (0..row).map(is_longer).filter(|&is_longer| is_longer).count()
        };
        assert_eq!([2, 1, 4, 2, 3, 5].map(|row| longest(&mut rows, row)), [2, 0, 2, 0, 0, 1]);
        (0..LAST_ROWS).for_each(|_| assert_eq!(longest(&mut rows, 2), 0));
        assert_eq!(longest(&mut rows, 4), 2, "the long ones are forgotten");
    }
}
