//! [`Uses`]: which tensors a consumer has asked for, which it has passed over, and which it may still ask for.

use std::ops::Range;
use std::thread::ThreadId;

use crate::allocate::{self, OutOfMemory};

use super::file_tensors::FileTensors;
use super::left_out::LeftOut;
use super::stride::Stride;

/// The purpose of memory for the uses of tensors.
const USES: &str = "the uses of the tensors of a file";

/// Tensors of several threads come in nearly the right order. A request this near is no jump.
pub const NEAR_TENSORS: usize = 32;

/// What a consumer did with a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    None,
    PassedOver,
    AskedFor,
}

/// What a consumer did with the tensors of a file.
#[derive(Debug, Clone)]
pub struct Uses {
    /// The number of tensors that were not asked for.
    pub unused: usize,
    of: Vec<Use>,
    left_out: LeftOut,
    stride: Stride,
    /// The first place of which nothing shows yet whether it was passed over.
    passed: usize,
    /// The thread that asked first.
    thread: Option<ThreadId>,
    /// Whether another one has asked, too.
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

    /// What is expected of a consumer in another file of so many tensors.
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

    /// Returns whether the tensor at a place of the order that is followed is likely to be asked for, and was not.
    pub fn awaits(&self, tensors: &FileTensors, order: usize, place: usize) -> bool {
        let number = tensors.number_at(place, order);
        let is_left_out = || self.stride.leaves_out(place) || self.left_out.has(tensors.series_of(number));
        !self.is_used(number) && !is_left_out()
    }

    /// Returns the first of the places whose tensor is [awaited](Self::awaits).
    pub fn next_place(&self, tensors: &FileTensors, order: usize, mut places: Range<usize>) -> Option<usize> {
        places.find(|&place| self.awaits(tensors, order, place))
    }

    /// Notes that a tensor is asked for. Returns whether it is for the first time.
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

    /// Notes that a thread asks.
    pub fn note_thread(&mut self, thread: ThreadId) {
        self.has_threads |= *self.thread.get_or_insert(thread) != thread;
    }

    /// Notes that a consumer went past these places. Returns whether it was to be expected, and whether it leaves out some
    /// series from now on.
    pub fn pass_over(&mut self, tensors: &FileTensors, order: usize, between: Range<usize>) -> (bool, bool) {
        let is_next = !between.is_empty() && self.next_place(tensors, order, between.clone()).is_none();
        let mut has_left_out = false;
        if self.has_threads {
            self.stride = Stride::default(); // the gaps of one are what others ask for
        } else {
            has_left_out |= self.stride.note(&between, tensors.layer_tensors);
        }
        // What seems to be passed over may come later in the layer, or another thread is about to ask for it.
        let behind = tensors.layer_tensors.max(if self.has_threads { NEAR_TENSORS } else { 0 });
        let passed = self.passed..between.end.saturating_sub(behind);
        // After a jump just the new place counts.
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

    /// Returns how many places ahead a request is no jump. One thread uses the tensors of a layer in any order.
    pub fn near_tensors(&self, tensors: &FileTensors) -> usize {
        if self.has_threads { NEAR_TENSORS } else { NEAR_TENSORS.min(2 * tensors.layer_tensors) }
    }

    /// Begins at a place.
    pub fn begin(&mut self, place: usize) {
        (self.passed, self.stride) = (place, Stride::at(place));
    }

    /// Forgets what was passed over in an order that is not the consumer's.
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

    /// Asks for tensors of a file of layers of as many tensors, and returns what each request was.
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
    fn a_consumer_of_one_tensor_of_each_layer_is_followed() {
        let (tensors, guess, found) = requests(4, 8, &[1, 5, 9, 13]);
        assert_eq!(found.iter().map(|it| it.is_next).collect::<Vec<_>>(), [false, false, false, true]);
        assert_eq!(found.iter().map(|it| it.has_left_out).collect::<Vec<_>>(), [false, false, true, false]);
        let awaited: Vec<_> = (0..32).filter(|&place| guess.uses.awaits(&tensors, 0, place)).collect();
        assert_eq!(awaited, [17, 21, 25, 29]);
        assert_eq!(next_place(&tensors, &guess, 14), Some(17));
    }

    #[test]
    fn layers_are_passed_over_and_expected_all_the_same() {
        let (tensors, guess, found) = requests(2, 9, &[0, 1, 6, 7, 14, 15]);
        assert!(!found.iter().any(|request| request.has_left_out));
        assert_eq!(next_place(&tensors, &guess, 16), Some(16));
    }

    #[test]
    fn of_every_third_layer_the_others_are_not_expected() {
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
    fn a_consumer_that_begins_in_the_middle_is_followed() {
        let (tensors, guess, found) = requests(4, 40, &[0, 80, 81, 82, 83, 84, 85]);
        let followed: Vec<_> = found[2..].iter().map(|request| request.is_next).collect();
        assert_eq!(followed, [true; 5]);
        assert_eq!(next_place(&tensors, &guess, 86), Some(86), "from its second layer on");
    }

    #[test]
    fn experts_of_other_ranks_are_left_out_after_a_layer() {
        let layer_tensors = 64;
        let experts: Vec<_> =
            (0..4).flat_map(|layer| (8..12).map(move |of| layer * layer_tensors + of)).collect();
        let (tensors, guess, _) = requests(layer_tensors, 6, &experts);
        let next = 4 * layer_tensors + 8;
        assert_eq!(next_place(&tensors, &guess, 3 * layer_tensors + 12), Some(next));
        assert_eq!(next_place(&tensors, &guess, next + 4), Some(next + layer_tensors));
    }

    #[test]
    fn another_order_within_each_layer_leaves_nothing_out() {
        let order: Vec<_> = (0..8).flat_map(|layer| [3, 1, 0, 2].map(|of| layer * 4 + of)).collect();
        let (_, _, found) = requests(4, 8, &order);
        assert!(!found.iter().any(|request| request.has_left_out));
    }

    #[test]
    fn what_threads_ask_for_in_nearly_the_right_order_is_not_left_out() {
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
