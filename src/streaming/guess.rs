//! [`Guess`]: which tensors of a file a consumer will ask for next, and which parts of them.
//!
//! Tensors are expected in the order of the data, or in another one (of their names, say) as soon as that shows. Of
//! each tensor the part is expected that was asked for of the tensor of the same kind: one of the same length, whose
//! name differs in its numbers. A rank takes the same rows or columns of all layers. Tensors of a series that the consumer
//! [leaves out](LeftOut) are not expected.

use std::collections::HashMap;
use std::ops::Range;
use std::thread::ThreadId;

use crate::natural::NameKinds;
use crate::slicing::Selection;

use super::left_out::LeftOut;
use super::plan::Want;

/// Tensors of several threads come in nearly the right order. A request this near is no jump.
pub const NEAR_TENSORS: usize = 32;
/// A consumer that goes on behind more tensors than this begins anew: none was passed over.
const MOST_PASSED_TENSORS: usize = 4096;

/// The tensors of a file, in order of the data. None is empty.
#[derive(Debug)]
pub struct FileTensors {
    /// Offset in the file and length of each.
    pub ranges: Vec<(u64, u64)>,
    names: Vec<NameKinds>,
    orders: Vec<TensorOrder>,
}

/// The tensors in some order, and the place of each in it.
#[derive(Debug)]
struct TensorOrder {
    numbers: Vec<u32>,
    places: Vec<u32>,
}

impl TensorOrder {
    fn new(numbers: Vec<u32>) -> Self {
        let mut places = vec![0; numbers.len()];
        for (place, &number) in numbers.iter().enumerate() {
            places[number as usize] = place as u32;
        }
        Self { numbers, places }
    }
}

impl FileTensors {
    /// `orders` has the tensors in other orders in which they may be asked for.
    pub fn new(ranges: Vec<(u64, u64)>, names: Vec<NameKinds>, orders: Vec<Vec<u32>>) -> Self {
        let by_offset = (0..ranges.len() as u32).collect();
        let orders = std::iter::once(by_offset).chain(orders).map(TensorOrder::new).collect();
        Self { ranges, names, orders }
    }

    pub fn number_at(&self, place: usize, order: usize) -> usize {
        self.orders[order].numbers[place] as usize
    }

    fn place_of(&self, number: usize, order: usize) -> usize {
        self.orders[order].places[number] as usize
    }

    /// Tensors of the same length alone are of one kind, so that a part of one lies inside each other one.
    fn kind_of(&self, number: usize) -> (u64, u64) {
        (self.names[number].kind, self.ranges[number].1)
    }

    fn series_of(&self, number: usize) -> u64 {
        self.names[number].series
    }

    /// Returns the places from behind one tensor up to another one.
    fn between(&self, last: usize, number: usize, order: usize) -> Range<usize> {
        self.place_of(last, order) + 1..self.place_of(number, order)
    }
}

/// Parts of a tensor, on average, up to which the first ones are read ahead.
const MOST_PARTS: usize = 3;

/// A request, as far as it was to be expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Request {
    /// The tensor's place in the order that the consumer seems to follow.
    pub place: usize,
    /// Whether the tensor comes after that of the last request, but for some that are not expected.
    pub is_next: bool,
    /// Whether the tensor is asked for for the first time.
    pub is_first: bool,
    /// Whether the consumer turned to another order.
    pub has_turned: bool,
    /// Whether the same part was asked for as of the last tensor of its kind.
    pub is_expected: bool,
    /// Whether the consumer has passed over tensors that were expected, as others like them were.
    pub has_left_out: bool,
}

/// What a consumer did with a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    None,
    PassedOver,
    AskedFor,
}

/// What a consumer asked for.
#[derive(Debug, Clone)]
pub struct Guess {
    /// The order that the consumer seems to follow.
    pub order: usize,
    /// Whether parts of tensors are asked for.
    pub has_parts: bool,
    /// The number of tensors that were not asked for.
    pub unused: usize,
    /// The tensor that was asked for last.
    pub last: Option<usize>,
    uses: Vec<Use>,
    /// Further parts of tensors that were asked for.
    further_parts: usize,
    /// For each kind what was asked for first of the last tensor; `None` for the whole.
    habits: HashMap<(u64, u64), Option<Selection>>,
    left_out: LeftOut,
    /// Jumps past expected tensors to far places.
    jumps: u32,
    /// The thread that asked first.
    thread: Option<ThreadId>,
    has_threads: bool,
}

impl Guess {
    pub fn new(tensors: &FileTensors) -> Self {
        let count = tensors.ranges.len();
        Self {
            order: 0,
            has_parts: false,
            unused: count,
            last: None,
            uses: vec![Use::None; count],
            further_parts: 0,
            habits: HashMap::new(),
            left_out: LeftOut::default(),
            jumps: 0,
            thread: None,
            has_threads: false,
        }
    }

    /// What is expected of a consumer that goes on in another file as it did here.
    pub fn in_next_file(&self, tensors: &FileTensors) -> Self {
        let uses = vec![Use::None; tensors.ranges.len()];
        Self { uses, unused: tensors.ranges.len(), last: None, further_parts: 0, ..self.clone() }
    }

    pub fn is_used(&self, number: usize) -> bool {
        self.uses[number] == Use::AskedFor
    }

    /// Returns whether a tensor is likely to be asked for, and was not.
    pub fn awaits(&self, tensors: &FileTensors, number: usize) -> bool {
        self.uses[number] == Use::None && !self.left_out.has(tensors.series_of(number))
    }

    /// Returns the first place from one on whose tensor is [awaited](Self::awaits).
    pub fn next_place(&self, tensors: &FileTensors, from: usize) -> Option<usize> {
        let mut places = from..tensors.ranges.len();
        places.find(|&place| self.awaits(tensors, tensors.number_at(place, self.order)))
    }

    /// Notes that a thread asks for a tensor, or a part of it.
    pub fn note(
        &mut self,
        tensors: &FileTensors,
        number: usize,
        selection: Option<&Selection>,
        thread: ThreadId,
    ) -> Request {
        self.has_threads |= *self.thread.get_or_insert(thread) != thread;
        let last = self.last.replace(number);
        let follows = |order: usize| {
            last.is_some_and(|last| tensors.place_of(number, order) == tensors.place_of(last, order) + 1)
        };
        let mut is_next = follows(self.order);
        let other = if is_next { None } else { (0..tensors.orders.len()).find(|&order| follows(order)) };
        let mut has_left_out = false;
        if let Some(order) = other {
            (self.order, is_next) = (order, true);
            self.take_back_passes();
        } else if let Some(last) = last {
            let between = tensors.between(last, number, self.order);
            let is_awaited = |place| self.awaits(tensors, tensors.number_at(place, self.order));
            is_next |= (1..MOST_PASSED_TENSORS).contains(&between.len()) && !between.clone().any(is_awaited);
            has_left_out = self.pass_over(tensors, &between);
        }
        let before = std::mem::replace(&mut self.uses[number], Use::AskedFor);
        match before {
            Use::None => self.left_out.ask(tensors.series_of(number)),
            Use::PassedOver => self.left_out.expect(tensors.series_of(number)),
            Use::AskedFor => {}
        }
        let is_first = before != Use::AskedFor;
        self.unused -= usize::from(is_first);
        let mut is_expected = false;
        if is_first {
            let before = self.habits.insert(tensors.kind_of(number), selection.cloned());
            is_expected = before.is_some_and(|before| before.as_ref() == selection);
            self.has_parts |= selection.is_some();
        }
        self.further_parts += usize::from(!is_first && selection.is_some());
        // What is read for the first one of many parts is in the way of the others.
        is_next &= selection.is_none() || self.further_parts <= MOST_PARTS * (self.uses.len() - self.unused);
        let place = tensors.place_of(number, self.order);
        Request { place, is_next, is_first, has_turned: other.is_some(), is_expected, has_left_out }
    }

    /// Notes that a consumer went past these places. Returns whether some series is left out from now on.
    fn pass_over(&mut self, tensors: &FileTensors, between: &Range<usize>) -> bool {
        // What one thread seems to pass over another one is about to ask for.
        let behind = if self.has_threads { NEAR_TENSORS } else { 0 };
        let passed = between.start.saturating_sub(behind)..between.end.saturating_sub(behind);
        if passed.len() >= MOST_PASSED_TENSORS {
            return false;
        }
        self.jumps += u32::from(passed.len() > NEAR_TENSORS);
        let jump = (passed.len() > NEAR_TENSORS).then_some(self.jumps);
        let mut has_left_out = false;
        for place in passed {
            let number = tensors.number_at(place, self.order);
            if self.uses[number] == Use::None {
                self.uses[number] = Use::PassedOver;
                has_left_out |= self.left_out.pass(tensors.series_of(number), jump);
            }
        }
        has_left_out
    }

    /// Forgets what was passed over in an order that is not the consumer's.
    fn take_back_passes(&mut self) {
        self.left_out.clear();
        self.uses.iter_mut().filter(|of| **of == Use::PassedOver).for_each(|of| *of = Use::None);
    }

    /// Returns what is expected of a tensor; `None` if nothing shows that. As long as whole tensors are asked for, so
    /// will be the others.
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

    const LAYERS: u64 = 3;

    /// Layers of one large tensor, of kind 1, and one small tensor, of kind 2. The other order is the reverse.
    fn tensors() -> FileTensors {
        let ranges = (0..LAYERS).flat_map(|layer| [(layer * 120, 100), (layer * 120 + 100, 20)]).collect();
        let names = [1, 2].map(|kind| NameKinds { kind, series: kind }).repeat(LAYERS as usize);
        FileTensors::new(ranges, names, vec![(0..2 * LAYERS as u32).rev().collect()])
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
    fn whole_tensors_are_expected_until_a_part_is_asked_for() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors);
        note(&mut guess, &tensors, 1, None);
        assert!(guess.expected(&tensors, 2).is_some_and(|want| want.selection.is_none() && want.len == 100));
        note(&mut guess, &tensors, 2, Some(&half()));
        assert!(guess.has_parts);
        assert_eq!(guess.expected(&tensors, 4).and_then(|want| want.selection), Some(half()));
        assert!(guess.expected(&tensors, 5).is_some_and(|want| want.selection.is_none()));
    }

    #[test]
    fn of_kinds_that_were_not_asked_for_nothing_is_expected_among_parts() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors);
        note(&mut guess, &tensors, 0, Some(&half()));
        assert!(guess.expected(&tensors, 3).is_none());
    }

    #[test]
    fn the_first_part_of_a_tensor_is_the_habit() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors);
        assert!(note(&mut guess, &tensors, 0, Some(&half())).is_first);
        assert!(!note(&mut guess, &tensors, 0, None).is_first);
        assert_eq!(guess.expected(&tensors, 2).and_then(|want| want.selection), Some(half()));
        assert_eq!(guess.unused, 5);
    }

    #[test]
    fn the_order_is_that_of_two_requests_in_a_row() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors);
        let first = note(&mut guess, &tensors, 3, None);
        let none = Request {
            place: 3,
            is_next: false,
            is_first: true,
            has_turned: false,
            is_expected: false,
            has_left_out: false,
        };
        assert_eq!(first, none);
        let turned = note(&mut guess, &tensors, 2, None);
        assert_eq!(turned, Request { is_next: true, has_turned: true, ..none });
        assert_eq!(note(&mut guess, &tensors, 1, None).place, 4);
        assert_eq!(tensors.number_at(5, guess.order), 0);
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
        let tensors = FileTensors::new(ranges, names, vec![]);
        let mut guess = Guess::new(&tensors);
        let found = numbers.iter().map(|&number| note(&mut guess, &tensors, number, None)).collect();
        (tensors, guess, found)
    }

    #[test]
    fn a_consumer_of_one_tensor_of_each_layer_is_followed() {
        let (tensors, guess, found) = requests(4, 8, &[1, 5, 9, 13]);
        assert_eq!(found.iter().map(|it| it.is_next).collect::<Vec<_>>(), [false, false, true, true]);
        assert_eq!(found.iter().map(|it| it.has_left_out).collect::<Vec<_>>(), [false, true, false, false]);
        let awaited: Vec<_> = (0..32).filter(|&number| guess.awaits(&tensors, number)).collect();
        assert_eq!(awaited, [17, 21, 25, 29]);
        assert_eq!(guess.next_place(&tensors, 14), Some(17));
    }

    #[test]
    fn nothing_is_expected_of_a_consumer_that_leaves_layers_out() {
        let (tensors, mut guess, _) = requests(2, 9, &[0, 1, 6, 7]);
        assert_eq!(guess.next_place(&tensors, 8), None);
        for number in [12, 13] {
            note(&mut guess, &tensors, number, None);
            assert_eq!(guess.next_place(&tensors, number), None);
        }
    }

    #[test]
    fn a_consumer_that_begins_in_the_middle_is_followed() {
        let (tensors, guess, found) = requests(4, 40, &[0, 80, 81]);
        assert_eq!(found.iter().map(|it| it.is_next).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(guess.next_place(&tensors, 82), Some(82));
    }

    #[test]
    fn experts_of_other_ranks_are_left_out_after_two_layers() {
        let layer_tensors = 64;
        let experts: Vec<_> =
            (0..3).flat_map(|layer| (8..12).map(move |of| layer * layer_tensors + of)).collect();
        let (tensors, guess, _) = requests(layer_tensors, 6, &experts);
        let next = 3 * layer_tensors + 8;
        assert_eq!(guess.next_place(&tensors, 2 * layer_tensors + 12), Some(next));
        assert_eq!(guess.next_place(&tensors, next + 4), Some(next + layer_tensors));
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
        assert_eq!(guess.next_place(&tensors, 40), Some(40));
        let left_out = [71, 79].map(|number| guess.note(&tensors, number, None, ids[0]).has_left_out);
        assert_eq!(left_out, [false, true], "those that are far behind");
    }
}
