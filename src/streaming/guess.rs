//! [`Guess`]: which tensors of a file a consumer will ask for next, and which parts of them.
//!
//! Tensors are expected in the order of the data, or in another one (of their names, say) as soon as that shows. Of
//! each tensor the part is expected that was asked for of the tensor of the same kind: one of the same length, whose
//! name differs in its numbers. A rank takes the same rows or columns of all layers.

use std::collections::HashMap;

use crate::slicing::Selection;

use super::plan::Want;

/// The tensors of a file, in order of the data. None is empty.
#[derive(Debug)]
pub struct FileTensors {
    /// Offset in the file and length of each.
    pub ranges: Vec<(u64, u64)>,
    kinds: Vec<u64>,
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
    /// `kinds` has a number for each tensor, and `orders` the tensors in other orders in which they may be asked for.
    pub fn new(ranges: Vec<(u64, u64)>, kinds: Vec<u64>, orders: Vec<Vec<u32>>) -> Self {
        let by_offset = (0..ranges.len() as u32).collect();
        let orders = std::iter::once(by_offset).chain(orders).map(TensorOrder::new).collect();
        Self { ranges, kinds, orders }
    }

    pub fn number_at(&self, place: usize, order: usize) -> usize {
        self.orders[order].numbers[place] as usize
    }

    fn place_of(&self, number: usize, order: usize) -> usize {
        self.orders[order].places[number] as usize
    }

    /// Tensors of the same length alone are of one kind, so that a part of one lies inside each other one.
    fn kind_of(&self, number: usize) -> (u64, u64) {
        (self.kinds[number], self.ranges[number].1)
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
    /// Whether the tensor comes after that of the last request.
    pub is_next: bool,
    /// Whether the tensor is asked for for the first time.
    pub is_first: bool,
    /// Whether the consumer turned to another order.
    pub has_turned: bool,
    /// Whether the same part was asked for as of the last tensor of its kind.
    pub is_expected: bool,
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
    used: Vec<bool>,
    /// Further parts of tensors that were asked for.
    further_parts: usize,
    /// For each kind what was asked for first of the last tensor; `None` for the whole.
    habits: HashMap<(u64, u64), Option<Selection>>,
}

impl Guess {
    pub fn new(tensors: &FileTensors) -> Self {
        let count = tensors.ranges.len();
        Self {
            order: 0,
            has_parts: false,
            unused: count,
            last: None,
            used: vec![false; count],
            further_parts: 0,
            habits: HashMap::new(),
        }
    }

    /// What is expected of a consumer that goes on in another file as it did here.
    pub fn in_next_file(&self, tensors: &FileTensors) -> Self {
        let habits = self.habits.clone();
        Self { order: self.order, has_parts: self.has_parts, habits, ..Self::new(tensors) }
    }

    pub fn is_used(&self, number: usize) -> bool {
        self.used[number]
    }

    /// Notes that a tensor is asked for, or a part of it.
    pub fn note(&mut self, tensors: &FileTensors, number: usize, selection: Option<&Selection>) -> Request {
        let last = self.last.replace(number);
        let follows = |order: usize| {
            last.is_some_and(|last| tensors.place_of(number, order) == tensors.place_of(last, order) + 1)
        };
        let mut is_next = follows(self.order);
        let other = if is_next { None } else { (0..tensors.orders.len()).find(|&order| follows(order)) };
        if let Some(order) = other {
            (self.order, is_next) = (order, true);
        }
        let is_first = !std::mem::replace(&mut self.used[number], true);
        self.unused -= usize::from(is_first);
        let mut is_expected = false;
        if is_first {
            let before = self.habits.insert(tensors.kind_of(number), selection.cloned());
            is_expected = before.is_some_and(|before| before.as_ref() == selection);
            self.has_parts |= selection.is_some();
        }
        self.further_parts += usize::from(!is_first && selection.is_some());
        // What is read for the first one of many parts is in the way of the others.
        is_next &= selection.is_none() || self.further_parts <= MOST_PARTS * (self.used.len() - self.unused);
        let place = tensors.place_of(number, self.order);
        Request { place, is_next, is_first, has_turned: other.is_some(), is_expected }
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
        let kinds = [1, 2].repeat(LAYERS as usize);
        FileTensors::new(ranges, kinds, vec![(0..2 * LAYERS as u32).rev().collect()])
    }

    fn half() -> Selection {
        Selection::new(50, &[50], &[1], 1, 100).expect("inside")
    }

    #[test]
    fn whole_tensors_are_expected_until_a_part_is_asked_for() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors);
        guess.note(&tensors, 1, None);
        assert!(guess.expected(&tensors, 2).is_some_and(|want| want.selection.is_none() && want.len == 100));
        guess.note(&tensors, 2, Some(&half()));
        assert!(guess.has_parts);
        assert_eq!(guess.expected(&tensors, 4).and_then(|want| want.selection), Some(half()));
        assert!(guess.expected(&tensors, 5).is_some_and(|want| want.selection.is_none()));
    }

    #[test]
    fn of_kinds_that_were_not_asked_for_nothing_is_expected_among_parts() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors);
        guess.note(&tensors, 0, Some(&half()));
        assert!(guess.expected(&tensors, 3).is_none());
    }

    #[test]
    fn the_first_part_of_a_tensor_is_the_habit() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors);
        assert!(guess.note(&tensors, 0, Some(&half())).is_first);
        assert!(!guess.note(&tensors, 0, None).is_first);
        assert_eq!(guess.expected(&tensors, 2).and_then(|want| want.selection), Some(half()));
        assert_eq!(guess.unused, 5);
    }

    #[test]
    fn the_order_is_that_of_two_requests_in_a_row() {
        let tensors = tensors();
        let mut guess = Guess::new(&tensors);
        let first = guess.note(&tensors, 3, None);
        let none =
            Request { place: 3, is_next: false, is_first: true, has_turned: false, is_expected: false };
        assert_eq!(first, none);
        let turned = guess.note(&tensors, 2, None);
        assert_eq!(turned, Request { is_next: true, has_turned: true, ..none });
        assert_eq!(guess.note(&tensors, 1, None).place, 4);
        assert_eq!(tensors.number_at(5, guess.order), 0);
    }
}
