//! [`Guess`]: predicts which tensors of a file the program will request next, and which parts of them.
//!
//! The program is assumed to request tensors in file order, until its requests show another order, such as the order of
//! the names. For each tensor, it is assumed to request the same part as of the last tensor of the same kind. Tensors
//! of a kind have the same length, and their names differ only in numbers; for example, a rank takes the same rows or
//! columns of every layer. The prediction excludes series that the program [skips](super::left_out), and tensors after
//! a [row](super::rows) of the usual length.

use std::collections::HashMap;
use std::thread::ThreadId;

use crate::allocate::OutOfMemory;
use crate::slicing::Selection;

use super::file_tensors::FileTensors;
use super::rows::Rows;
use super::uses::Uses;
use crate::streaming::plan::Want;

/// First parts are read ahead as long as the program requests at most this many further parts per tensor, on average.
const MOST_PARTS: usize = 3;

/// A request, compared with the prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Request {
    /// The tensor's place in the order that the program seems to follow.
    pub place: usize,
    /// Whether the tensor follows the previous request. Skipped tensors that were not predicted do not count.
    pub is_next: bool,
    /// Whether this is the first request for the tensor.
    pub is_first: bool,
    /// Whether the program changed to another order.
    pub has_turned: bool,
    /// Whether the request is for the same part as of the last tensor of this kind.
    pub is_expected: bool,
    /// Whether the request reveals that the program skips tensors that were predicted until now: a series, or layers at
    /// regular distances.
    pub has_left_out: bool,
    /// The place at which the current row is predicted to end.
    pub row_end: Option<usize>,
}

/// The requests so far, and the predictions that follow from them.
#[derive(Debug, Clone)]
pub struct Guess {
    /// The order that the program seems to follow.
    pub order: usize,
    /// Whether the program has requested parts of tensors.
    pub has_parts: bool,
    /// The tensor of the last request.
    pub last: Option<usize>,
    pub uses: Uses,
    pub rows: Rows,
    /// Number of requests for parts of tensors that were requested before.
    further_parts: usize,
    /// For each kind: the first request for its last tensor; `None` for the whole tensor.
    habits: HashMap<(u64, u64), Option<Selection>>,
}

impl Guess {
    pub fn new(tensors: &FileTensors) -> Result<Self, OutOfMemory> {
        Ok(Self {
            order: 0,
            has_parts: false,
            last: None,
            uses: Uses::new(tensors.ranges.len())?,
            rows: Rows::default(),
            further_parts: 0,
            habits: HashMap::new(),
        })
    }

    /// Returns the predictions for another file if the program continues as it did here.
    pub fn in_next_file(&self, tensors: &FileTensors) -> Result<Self, OutOfMemory> {
        let (uses, rows) = (self.uses.in_next_file(tensors.ranges.len())?, self.rows.in_next_file());
        let (order, has_parts, habits) = (self.order, self.has_parts, self.habits.clone());
        Ok(Self { order, has_parts, last: None, uses, rows, further_parts: 0, habits })
    }

    /// Notes that a thread requests a tensor, or a part of it.
    pub fn note(
        &mut self,
        tensors: &FileTensors,
        number: usize,
        selection: Option<&Selection>,
        thread: ThreadId,
    ) -> Request {
        self.uses.note_thread(thread);
        let last = self.last.replace(number);
        let follows = |order: usize| {
            last.is_some_and(|last| tensors.place_of(number, order) == tensors.place_of(last, order) + 1)
        };
        let mut is_next = follows(self.order);
        let other = if is_next { None } else { tensors.orders().find(|&order| follows(order)) };
        let mut has_left_out = false;
        if let Some(order) = other {
            (self.order, is_next) = (order, true);
            self.uses.take_back_passes();
            self.uses.begin(tensors.place_of(number, order));
        } else if let Some(last) = last {
            let between = tensors.between(last, number, self.order);
            let (is_expected, leaves_out) = self.uses.pass_over(tensors, self.order, between);
            (is_next, has_left_out) = (is_next || is_expected, leaves_out);
        } else {
            self.uses.begin(tensors.place_of(number, self.order));
        }
        let is_first = self.uses.ask(tensors, number);
        let mut is_expected = false;
        if is_first {
            let before = self.habits.insert(tensors.kind_of(number), selection.cloned());
            is_expected = before.is_some_and(|before| before.as_ref() == selection);
            self.has_parts |= selection.is_some();
        }
        self.further_parts += usize::from(!is_first && selection.is_some());
        // If the program requests many parts of each tensor, reading ahead the first parts would delay the later ones.
        is_next &= selection.is_none() || self.further_parts <= MOST_PARTS * self.uses.asked_for();
        let place = tensors.place_of(number, self.order);
        let has_turned = other.is_some();
        if is_first || has_turned {
            let behind = place + 1..tensors.ranges.len();
            let awaited = behind.filter(|&it| self.uses.awaits(tensors, self.order, it));
            let near = if has_left_out { usize::MAX } else { 2 * tensors.layer_tensors };
            self.rows.note(place, is_next && !has_turned, near, awaited);
        }
        let row_end = self.row_end();
        Request { place, is_next, is_first, has_turned, is_expected, has_left_out, row_end }
    }

    /// Returns the place at which the current row is predicted to end.
    pub fn row_end(&self) -> Option<usize> {
        self.rows.end.filter(|_| !self.has_parts && !self.uses.has_threads)
    }

    /// Returns whether a single thread uses the tensors of each layer in an order that differs from their places.
    pub fn is_shuffled(&self) -> bool {
        self.rows.is_shuffled() && !self.uses.has_threads
    }

    /// Returns the predicted request for a tensor; `None` without a prediction. While the program requests only whole
    /// tensors, whole tensors are predicted.
    pub fn expected(&self, tensors: &FileTensors, number: usize) -> Option<Want> {
        let known = self.habits.get(&tensors.kind_of(number)).cloned();
        let selection = known.or_else(|| (!self.has_parts).then_some(None))?;
        let (offset, len) = tensors.ranges[number];
        Some(Want { file: 0, offset, len, selection })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::natural::NameKinds;

    const LAYERS: u64 = 3;

    /// Makes layers of one large tensor, of kind 1, and one small tensor, of kind 2. The other order is the reverse.
    fn tensors() -> FileTensors {
        let ranges = (0..LAYERS).flat_map(|layer| [(layer * 120, 100), (layer * 120 + 100, 20)]).collect();
        let names = [1, 2].map(|kind| NameKinds { kind, series: kind }).repeat(LAYERS as usize);
        FileTensors::new(ranges, names, vec![(0..2 * LAYERS as u32).rev().collect()]).expect("memory")
    }

    fn note(
        guess: &mut Guess,
        tensors: &FileTensors,
        number: usize,
        selection: Option<&Selection>,
    ) -> Request {
        guess.note(tensors, number, selection, std::thread::current().id())
    }

    fn half() -> Selection {
        Selection::new(50, &[50], &[1], 1, 100).expect("inside")
    }

    #[test]
    fn whole_tensors_are_predicted_until_a_part_is_requested() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors).expect("memory");
        note(&mut guess, &tensors, 1, None);
        assert!(guess.expected(&tensors, 2).is_some_and(|want| want.selection.is_none() && want.len == 100));
        note(&mut guess, &tensors, 2, Some(&half()));
        assert!(guess.has_parts);
        assert_eq!(guess.expected(&tensors, 4).and_then(|want| want.selection), Some(half()));
        assert!(guess.expected(&tensors, 5).is_some_and(|want| want.selection.is_none()));
    }

    #[test]
    fn among_parts_nothing_is_predicted_for_unknown_kinds() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors).expect("memory");
        note(&mut guess, &tensors, 0, Some(&half()));
        assert!(guess.expected(&tensors, 3).is_none());
    }

    #[test]
    fn the_first_part_of_a_tensor_is_the_habit() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors).expect("memory");
        assert!(note(&mut guess, &tensors, 0, Some(&half())).is_first);
        assert!(!note(&mut guess, &tensors, 0, None).is_first);
        assert_eq!(guess.expected(&tensors, 2).and_then(|want| want.selection), Some(half()));
        assert_eq!(guess.uses.unused, 5);
    }

    #[test]
    fn two_requests_in_a_row_reveal_the_order() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors).expect("memory");
        let first = note(&mut guess, &tensors, 3, None);
        let none = Request {
            place: 3,
            is_next: false,
            is_first: true,
            has_turned: false,
            is_expected: false,
            has_left_out: false,
            row_end: None,
        };
        assert_eq!(first, none);
        let turned = note(&mut guess, &tensors, 2, None);
        assert_eq!(turned, Request { is_next: true, has_turned: true, ..none });
        assert_eq!(note(&mut guess, &tensors, 1, None).place, 4);
        assert_eq!(tensors.number_at(5, guess.order), 0);
    }
}
