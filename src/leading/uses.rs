//! [`Uses`]: which tensors a program has requested, which it has skipped, and which it may still request.

use std::ops::Range;
use std::thread::ThreadId;

use crate::allocate::{self, OutOfMemory};

use super::file_tensors::FileTensors;
use super::left_out::LeftOut;
use super::stride::Stride;

/// The purpose of memory for the uses of tensors.
const USES: &str = "the uses of the tensors of a file";

/// Several threads together request tensors in nearly the right order. A request at most this many places ahead is no
/// jump.
pub const NEAR_TENSORS: usize = 32;

/// The program's use of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    None,
    PassedOver,
    AskedFor,
}

/// The program's use of the tensors of a file.
#[derive(Debug, Clone)]
pub struct Uses {
    /// Number of tensors that the program has not requested.
    pub unused: usize,
    of: Vec<Use>,
    left_out: LeftOut,
    stride: Stride,
    /// The first place for which it is still open whether the program skips it.
    passed: usize,
    /// The thread that made the first request.
    thread: Option<ThreadId>,
    /// Whether another thread has made a request, too.
    pub has_threads: bool,
}

impl Uses {
    pub fn new(count: usize) -> Result<Self, OutOfMemory> {
        Ok(Self {
            unused: count,
            of: allocate::filled(Use::None, count, USES)?,
            left_out: LeftOut::default(),
            stride: Stride::default(),
            passed: 0,
            thread: None,
            has_threads: false,
        })
    }

    /// Returns the knowledge that still applies in another file of `count` tensors.
    pub fn in_next_file(&self, count: usize) -> Result<Self, OutOfMemory> {
        let Self { left_out, thread, has_threads, .. } = self;
        let (left_out, thread, has_threads) = (left_out.clone(), *thread, *has_threads);
        Ok(Self { left_out, thread, has_threads, ..Self::new(count)? })
    }

    pub fn asked_for(&self) -> usize {
        self.of.len() - self.unused
    }

    pub fn is_used(&self, number: usize) -> bool {
        self.of[number] == Use::AskedFor
    }

    /// Returns whether the tensor at a place is awaited: the program has not requested it, but is predicted to. `order`
    /// is the order that the program follows.
    pub fn awaits(&self, tensors: &FileTensors, order: usize, place: usize) -> bool {
        let number = tensors.number_at(place, order);
        let is_left_out = || self.stride.leaves_out(place) || self.left_out.has(tensors.series_of(number));
        !self.is_used(number) && !is_left_out()
    }

    /// Returns the first of the places whose tensor is [awaited](Self::awaits).
    pub fn next_place(&self, tensors: &FileTensors, order: usize, mut places: Range<usize>) -> Option<usize> {
        places.find(|&place| self.awaits(tensors, order, place))
    }

    /// Notes a request for a tensor. Returns whether it is the first one for this tensor.
    pub fn ask(&mut self, tensors: &FileTensors, number: usize) -> bool {
        let before = std::mem::replace(&mut self.of[number], Use::AskedFor);
        match before {
            Use::None => self.left_out.ask(tensors.series_of(number)),
            Use::PassedOver => self.left_out.ask_late(tensors.series_of(number)),
            Use::AskedFor => return false,
        }
        self.unused -= 1;
        true
    }

    /// Notes that a thread made a request.
    pub fn note_thread(&mut self, thread: ThreadId) {
        self.has_threads |= *self.thread.get_or_insert(thread) != thread;
    }

    /// Notes that the program skipped the places `between` two requests. Returns whether this skip was predicted, and
    /// whether it reveals a series or a stride that the program skips from now on.
    pub fn pass_over(&mut self, tensors: &FileTensors, order: usize, between: Range<usize>) -> (bool, bool) {
        let is_next = !between.is_empty() && self.next_place(tensors, order, between.clone()).is_none();
        let mut has_left_out = false;
        if self.has_threads {
            self.stride = Stride::default(); // other threads request the tensors in one thread's gaps
        } else {
            has_left_out |= self.stride.note(&between, tensors.layer_tensors);
        }
        // The program may request these tensors later in the same layer, or another thread is about to. They do not
        // count as skipped yet.
        let behind = tensors.layer_tensors.max(if self.has_threads { NEAR_TENSORS } else { 0 });
        let passed = self.passed..between.end.saturating_sub(behind);
        // After a jump, continue at the new place.
        let next = if between.len() > behind { between.end } else { passed.end };
        self.passed = next.max(self.passed);
        for place in passed {
            let number = tensors.number_at(place, order);
            if self.of[number] == Use::None {
                self.of[number] = Use::PassedOver;
                has_left_out |= self.left_out.pass(tensors.series_of(number));
            }
        }
        (is_next, has_left_out)
    }

    /// Returns how many places ahead a request may be without being a jump. Even a single thread may use the tensors of
    /// a layer in any order.
    pub fn near_tensors(&self, tensors: &FileTensors) -> usize {
        if self.has_threads { NEAR_TENSORS } else { NEAR_TENSORS.min(2 * tensors.layer_tensors) }
    }

    /// Begins at a place.
    pub fn begin(&mut self, place: usize) {
        (self.passed, self.stride) = (place, Stride::at(place));
    }

    /// Forgets all skips, because they were noted in an order that the program does not follow.
    pub fn take_back_passes(&mut self) {
        self.left_out.clear();
        self.of.iter_mut().filter(|of| **of == Use::PassedOver).for_each(|of| *of = Use::None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::guess::{Guess, Request};
    use super::*;
    use crate::natural::NameKinds;

    fn note(guess: &mut Guess, tensors: &FileTensors, number: usize) -> Request {
        guess.note(tensors, number, None, std::thread::current().id())
    }

    fn next_place(tensors: &FileTensors, guess: &Guess, from: usize) -> Option<usize> {
        guess.uses.next_place(tensors, guess.order, from..tensors.ranges.len())
    }

    /// Requests tensors of a file whose layers have `layer_tensors` tensors. Returns the facts about each request.
    fn requests(
        layer_tensors: usize,
        layers: usize,
        numbers: &[usize],
    ) -> (FileTensors, Guess, Vec<Request>) {
        let count = layers * layer_tensors;
        let ranges = (0..count as u64).map(|number| (number * 100, 100)).collect();
        let series = |number: usize| (number % layer_tensors) as u64;
        let names = (0..count).map(|number| NameKinds { kind: 0, series: series(number) }).collect();
        let tensors = FileTensors::new(ranges, names, vec![]).expect("memory");
        let mut guess = Guess::new(&tensors).expect("memory");
        let found = numbers.iter().map(|&number| note(&mut guess, &tensors, number)).collect();
        (tensors, guess, found)
    }

    #[test]
    fn a_program_that_takes_one_tensor_of_each_layer_is_predicted() {
        let (tensors, guess, found) = requests(4, 8, &[1, 5, 9, 13]);
        assert_eq!(found.iter().map(|it| it.is_next).collect::<Vec<_>>(), [false, false, false, true]);
        assert_eq!(found.iter().map(|it| it.has_left_out).collect::<Vec<_>>(), [false, false, true, false]);
        let awaited: Vec<_> = (0..32).filter(|&place| guess.uses.awaits(&tensors, 0, place)).collect();
        assert_eq!(awaited, [17, 21, 25, 29]);
        assert_eq!(next_place(&tensors, &guess, 14), Some(17));
    }

    #[test]
    fn irregularly_skipped_layers_stay_predicted() {
        let (tensors, guess, found) = requests(2, 9, &[0, 1, 6, 7, 14, 15]);
        assert!(!found.iter().any(|request| request.has_left_out));
        assert_eq!(next_place(&tensors, &guess, 16), Some(16));
    }

    #[test]
    fn with_every_third_layer_the_other_layers_are_not_predicted() {
        let (tensors, mut guess, found) = requests(2, 12, &[0, 1, 6, 7, 12, 13]);
        assert_eq!(
            found.iter().map(|it| it.has_left_out).collect::<Vec<_>>(),
            [false, false, false, false, true, false]
        );
        assert_eq!(next_place(&tensors, &guess, 14), Some(18));
        assert!(note(&mut guess, &tensors, 18).is_next);
        assert!(!note(&mut guess, &tensors, 22).is_next, "it was the turn of 19");
        assert_eq!(next_place(&tensors, &guess, 23), Some(23));
    }

    #[test]
    fn threads_have_no_stride() {
        let (tensors, mut guess, _) = requests(1, 40, &[0]);
        let ids = [0, 1].map(|_| std::thread::spawn(|| ()).thread().id());
        for number in [3, 6, 9] {
            guess.note(&tensors, number, None, ids[number % 2]);
        }
        assert_eq!(next_place(&tensors, &guess, 10), Some(10));
    }

    #[test]
    fn a_program_that_begins_in_the_middle_is_predicted() {
        let (tensors, guess, found) = requests(4, 40, &[0, 80, 81, 82, 83, 84, 85]);
        let followed: Vec<_> = found[2..].iter().map(|request| request.is_next).collect();
        assert_eq!(followed, [true; 5]);
        assert_eq!(next_place(&tensors, &guess, 86), Some(86), "from its second layer on");
    }

    #[test]
    fn experts_of_other_ranks_are_skipped_after_a_layer() {
        let layer_tensors = 64;
        let experts: Vec<_> =
            (0..4).flat_map(|layer| (8..12).map(move |of| layer * layer_tensors + of)).collect();
        let (tensors, guess, _) = requests(layer_tensors, 6, &experts);
        let next = 4 * layer_tensors + 8;
        assert_eq!(next_place(&tensors, &guess, 3 * layer_tensors + 12), Some(next));
        assert_eq!(next_place(&tensors, &guess, next + 4), Some(next + layer_tensors));
    }

    #[test]
    fn another_order_within_each_layer_skips_nothing() {
        let order: Vec<_> = (0..8).flat_map(|layer| [3, 1, 0, 2].map(|of| layer * 4 + of)).collect();
        let (_, _, found) = requests(4, 8, &order);
        assert!(!found.iter().any(|request| request.has_left_out));
    }

    #[test]
    fn threads_that_request_in_nearly_the_right_order_skip_nothing() {
        let (tensors, mut guess, _) = requests(2, 40, &[0]);
        let ids = [0, 1].map(|_| std::thread::spawn(|| ()).thread().id());
        for number in 0..40 {
            let number = number ^ 1;
            let request = guess.note(&tensors, number, None, ids[number % 2]);
            assert!(!request.has_left_out);
        }
        assert_eq!(next_place(&tensors, &guess, 40), Some(40));
    }
}
