//! [`LeadCursor`]: decides which bytes to request from the kernel next, ahead of a program that uses whole tensors.
//!
//! The lead begins with the first right prediction, and each further one doubles it. It grows up to its limit, and no
//! further than its initial length plus twice the bytes that the program has used. After a jump it starts again at its
//! initial length, and also when the program starts to skip predicted tensors. If the current [row](super::rows) has a
//! predicted end, the lead stops there.

use crate::allocate::{self, OutOfMemory};
use crate::fetch::budget::Budget;
use crate::fetch::ranges::{ByteRange, FileId};

use super::file_tensors::FileTensors;
use super::guess::{Guess, Request};

/// Bytes per request to the kernel.
const STEP_BYTES: u64 = 1 << 20;
/// A lead may grow to its initial length plus this many times the bytes used since. For example, if a program took 8 of
/// 64 tensors of 4 MiB, this limit cut the bytes read from 256 MiB to 97 MiB.
pub const CREDIT: u64 = 2;

/// The next action of the advising thread.
#[derive(Debug, PartialEq, Eq)]
pub enum LeadStep {
    /// Request these bytes from the kernel.
    Ask(ByteRange),
    /// Wait for the program's next request.
    Wait,
    /// End: everything has been requested.
    End,
}

#[derive(Debug)]
pub struct LeadCursor {
    /// Place of the next tensor to advise.
    cursor: usize,
    /// Bytes that were advised and whose tensors the program has not requested.
    budget: Budget,
    first_bytes: u64,
    /// Bytes that the program has requested since the last jump.
    used_bytes: u64,
    /// For each tensor: the number of the jump after which it was advised, and the bytes advised since.
    advised: Vec<(u32, u64)>,
    jumps: u32,
    /// Whether the program has made a request, or is predicted to make one.
    has_begun: bool,
    /// Whether the last request was predicted. After a jump, it is not yet clear that more tensors will follow.
    guesses_right: bool,
    /// Set once the program has made its last request: the bytes that may still be advised.
    last_bytes: Option<u64>,
}

impl LeadCursor {
    /// `budget` limits the lead. The file has `tensors` tensors.
    pub fn new(tensors: usize, budget: Budget) -> Result<Self, OutOfMemory> {
        let advised = allocate::filled((0, 0), tensors, "the advice about the tensors of a file")?;
        Ok(Self {
            cursor: 0,
            first_bytes: budget.limit(),
            used_bytes: 0,
            budget,
            advised,
            jumps: 0,
            has_begun: false,
            guesses_right: false,
            last_bytes: None,
        })
    }

    /// Returns whether the lead covers the whole file, or the program has used all of it, and the predictions are
    /// right.
    pub fn is_at_end(&self, is_all_used: bool) -> bool {
        self.guesses_right && (is_all_used || self.cursor >= self.advised.len())
    }

    /// Begins for a program that is predicted to come here from another file.
    pub fn begin(&mut self, budget: Budget) {
        (self.has_begun, self.guesses_right) = (true, true);
        (self.first_bytes, self.budget) = (budget.limit(), budget);
    }

    /// Requests nothing ahead until the program's next request.
    pub fn rest(&mut self) {
        self.guesses_right = false;
    }

    /// Notes that the program has made its last request. `bytes` returns how much may still be advised of the requested
    /// tensors.
    pub fn finish(&mut self, bytes: impl FnOnce() -> u64) {
        if self.last_bytes.is_none() {
            self.last_bytes = Some(bytes());
            // A jump may have left some of them behind.
            self.cursor = 0;
        }
    }

    /// Returns whether the program has made its last request.
    pub fn is_finishing(&self) -> bool {
        self.last_bytes.is_some()
    }

    /// Notes a request for tensor `number`, which has `len` bytes. A request at most `near` places ahead is no jump.
    /// After a jump, the lead starts again with the budget `first`.
    pub fn note(&mut self, (number, len): (usize, u64), request: Request, near: usize, first: Budget) {
        let Request { place, is_next, is_first, has_turned, has_left_out, row_end, .. } = request;
        if has_turned {
            self.cursor = place;
        }
        let bytes = self.advised_bytes(number);
        let was_advised = bytes > 0;
        if was_advised && is_first {
            self.budget.give_back(bytes);
        }
        let is_near = row_end.is_none() && (self.cursor..self.cursor + near).contains(&place);
        if (was_advised || is_next || (is_near && self.has_begun)) && !has_left_out {
            self.used_bytes += if is_first { len } else { 0 };
            self.budget.double_up_to(self.first_bytes.saturating_add(CREDIT.saturating_mul(self.used_bytes)));
            self.guesses_right |= is_first; // a repeated request proves nothing
            if !was_advised {
                self.cursor = self.cursor.min(place); // the tensor was not predicted
            }
        } else {
            // In a row of the usual length, the other tensors will follow.
            self.guesses_right = row_end.is_some();
            self.jumps += 1;
            (self.first_bytes, self.used_bytes, self.budget) = (first.limit(), len, first);
            self.cursor = place;
        }
        self.has_begun = true;
    }

    /// Returns how many bytes of a tensor were advised since the last jump.
    fn advised_bytes(&self, number: usize) -> u64 {
        let (since, bytes) = self.advised[number];
        if since == self.jumps { bytes } else { 0 }
    }

    /// Returns the next action of the advising thread.
    pub fn next(&mut self, tensors: &FileTensors, guess: &Guess) -> LeadStep {
        loop {
            let place = self.cursor;
            if place >= tensors.ranges.len() {
                // The program has requested every tensor, but some were left behind when it changed to another order.
                let is_left = |&place: &usize| {
                    let number = tensors.number_at(place, guess.order);
                    self.advised[number].1 < tensors.ranges[number].1
                };
                if guess.uses.unused == 0
                    && let Some(left) = (0..place).find(is_left)
                {
                    self.cursor = left;
                    continue;
                }
                // The program may have begun in the middle of the file, and may still go back.
                let is_over = guess.uses.unused == 0 || self.is_finishing();
                let is_all_advised = || self.advised.iter().all(|&(_, bytes)| bytes > 0);
                return if is_over || is_all_advised() { LeadStep::End } else { LeadStep::Wait };
            }
            let number = tensors.number_at(place, guess.order);
            let (offset, len) = tensors.ranges[number];
            let is_used = guess.uses.is_used(number);
            // A used tensor is requested once. If memory is short, its pages may be gone again after a jump, and a second
            // request would read them in vain.
            let done = if is_used { self.advised[number].1 } else { self.advised_bytes(number) };
            let is_left_out = || self.is_finishing() || !guess.uses.awaits(tensors, guess.order, place);
            if done >= len || (!is_used && is_left_out()) {
                self.cursor = place + 1;
                continue;
            }
            let may_lead = match guess.row_end() {
                Some(end) => place < end && self.budget.is_below_most(),
                None => self.budget.has_room(),
            };
            if !(is_used || self.guesses_right && may_lead) {
                return LeadStep::Wait;
            }
            let bytes = STEP_BYTES.min(len - done);
            if let Some(left) = self.last_bytes {
                let Some(left) = left.checked_sub(bytes) else { return LeadStep::End };
                self.last_bytes = Some(left);
            }
            if !is_used {
                self.budget.take(bytes);
            }
            self.advised[number] = (self.jumps, done + bytes);
            return LeadStep::Ask(ByteRange { file: FileId::default(), offset: offset + done, len: bytes });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::natural::NameKinds;

    const TENSORS: usize = 64;
    const TENSOR_BYTES: u64 = 3 * STEP_BYTES / 2;

    struct Consumer {
        tensors: FileTensors,
        guess: Guess,
        cursor: LeadCursor,
    }

    impl Consumer {
        fn new() -> Self {
            Self::of_order((0..TENSORS as u32).collect())
        }

        fn of_order(order: Vec<u32>) -> Self {
            Self::of_layers(TENSORS as u64, order)
        }

        /// A program that uses a file with `layer_tensors` tensors in each layer.
        fn of_layers(layer_tensors: u64, order: Vec<u32>) -> Self {
            let ranges = (0..TENSORS as u64).map(|number| (number * TENSOR_BYTES, TENSOR_BYTES)).collect();
            let series = (0..TENSORS as u64).map(|number| number % layer_tensors);
            let names = series.map(|series| NameKinds { kind: 1, series }).collect();
            let tensors = FileTensors::new(
                ranges,
                names,
                vec![order].into_iter().filter(|order| !order.is_empty()).collect(),
            )
            .expect("memory");
            Self {
                guess: Guess::new(&tensors).expect("memory"),
                cursor: LeadCursor::new(TENSORS, budget()).expect("memory"),
                tensors,
            }
        }

        fn ask(&mut self, number: usize) {
            let request = self.guess.note(&self.tensors, number, None, std::thread::current().id());
            let near = self.guess.uses.near_tensors(&self.tensors);
            self.cursor.note((number, TENSOR_BYTES), request, near, budget());
        }

        fn next(&mut self) -> LeadStep {
            self.cursor.next(&self.tensors, &self.guess)
        }

        /// Returns the range of all bytes that are advised now. Asserts that it has no gaps.
        fn asked(&mut self) -> std::ops::Range<u64> {
            let mut found: Option<std::ops::Range<u64>> = None;
            while let LeadStep::Ask(range) = self.next() {
                let begin = found.as_ref().map_or(range.offset, |found| found.start);
                assert_eq!(found.map_or(range.offset, |found| found.end), range.offset);
                found = Some(begin..range.offset + range.len);
            }
            found.unwrap_or(0..0)
        }
    }

    fn budget() -> Budget {
        Budget::new(2 * STEP_BYTES, 8 * STEP_BYTES)
    }

    #[test]
    fn the_lead_begins_with_a_right_guess_and_doubles_with_each() {
        let mut consumer = Consumer::new();
        assert_eq!(consumer.next(), LeadStep::Wait);
        consumer.ask(0);
        assert_eq!(consumer.asked(), 0..TENSOR_BYTES, "nothing shows that others follow");
        consumer.ask(1);
        let ahead = |consumer: &mut Consumer, used: u64| consumer.asked().end - used * TENSOR_BYTES;
        let second = ahead(&mut consumer, 2);
        assert!((4 * STEP_BYTES..5 * STEP_BYTES).contains(&second), "{second}");
        consumer.ask(2);
        let third = ahead(&mut consumer, 3);
        assert!((8 * STEP_BYTES..9 * STEP_BYTES).contains(&third), "{third}");
        consumer.ask(3);
        let fourth = ahead(&mut consumer, 4);
        assert!((8 * STEP_BYTES..9 * STEP_BYTES).contains(&fourth), "{fourth}: the most");
    }

    #[test]
    fn a_request_within_two_layers_is_no_jump() {
        let asked = |layer_tensors| {
            let mut consumer = Consumer::of_layers(layer_tensors, vec![]);
            consumer.ask(0);
            consumer.asked();
            consumer.ask(9);
            consumer.asked().start / TENSOR_BYTES
        };
        assert_eq!([1, 4, 8].map(asked), [9, 9, 1]);
    }

    #[test]
    fn after_a_jump_the_lead_begins_anew() {
        let mut consumer = Consumer::new();
        (0..4).for_each(|number| consumer.ask(number));
        consumer.asked();
        consumer.ask(60);
        assert!(!consumer.cursor.guesses_right);
        assert_eq!(consumer.asked(), 60 * TENSOR_BYTES..61 * TENSOR_BYTES);
        consumer.ask(61);
        assert_eq!(consumer.asked(), 61 * TENSOR_BYTES..64 * TENSOR_BYTES);
        assert!(consumer.cursor.is_at_end(false));
        assert_eq!(consumer.next(), LeadStep::Wait, "the consumer may go back to the beginning");
    }

    #[test]
    fn a_used_tensor_is_advised_once_even_after_jumps() {
        let mut consumer = Consumer::new();
        let mut advised_bytes = [0; TENSORS];
        let mut count = |consumer: &mut Consumer| {
            while let LeadStep::Ask(range) = consumer.next() {
                advised_bytes[(range.offset / TENSOR_BYTES) as usize] += range.len;
            }
        };
        let used = [0, 1, 2, 3, 40, 1, 50, 2, 3, 4];
        for number in used {
            consumer.ask(number);
            count(&mut consumer);
        }
        consumer.cursor.finish(|| u64::MAX);
        count(&mut consumer);
        for number in used {
            assert_eq!(advised_bytes[number], TENSOR_BYTES, "{number}");
        }
    }

    #[test]
    fn a_repeated_request_proves_nothing() {
        let mut consumer = Consumer::new();
        for number in [0, TENSORS - 1, TENSORS - 1] {
            consumer.ask(number);
            consumer.asked();
        }
        assert!(!consumer.cursor.is_at_end(false));
    }

    #[test]
    fn after_rows_of_equal_length_exactly_one_row_is_advised_at_once() {
        let mut consumer = Consumer::of_layers(1, vec![]);
        for number in [60, 61, 10, 11] {
            consumer.ask(number);
            consumer.asked();
        }
        consumer.ask(50);
        assert_eq!(consumer.asked(), 50 * TENSOR_BYTES..52 * TENSOR_BYTES);
        consumer.ask(51);
        assert_eq!(consumer.next(), LeadStep::Wait);
        assert!(!consumer.cursor.is_at_end(false));
        consumer.ask(52);
        let ahead_bytes = consumer.asked().end - 53 * TENSOR_BYTES;
        assert!((8 * STEP_BYTES..9 * STEP_BYTES).contains(&ahead_bytes), "{ahead_bytes}: the row goes on");
    }

    #[test]
    fn the_lead_goes_on_if_each_layer_is_requested_in_another_order() {
        let mut consumer = Consumer::of_layers(8, vec![]);
        let mut asked_end = 0;
        // Layers of eight tensors in the order of their modules, first one by one and then two by two.
        for layer in 0..4 {
            for of in [7, 5, 6, 4, 2, 3, 0, 1] {
                consumer.ask(8 * layer + of);
                while let LeadStep::Ask(range) = consumer.next() {
                    asked_end = asked_end.max(range.offset + range.len);
                }
            }
        }
        assert!(consumer.cursor.guesses_right && asked_end > 36 * TENSOR_BYTES, "{asked_end}");
    }

    #[test]
    fn skipped_tensors_are_not_advised_at_the_end() {
        let mut consumer = Consumer::new();
        for number in [0, 1, 40] {
            consumer.ask(number);
        }
        consumer.cursor.finish(|| u64::MAX);
        let mut bytes = [0; TENSORS];
        while let LeadStep::Ask(range) = consumer.next() {
            bytes[(range.offset / TENSOR_BYTES) as usize] += range.len;
        }
        for (number, bytes) in bytes.into_iter().enumerate() {
            assert_eq!(bytes, if [0, 1, 40].contains(&number) { TENSOR_BYTES } else { 0 }, "{number}");
        }
        assert_eq!(consumer.next(), LeadStep::End);
    }

    #[test]
    fn a_started_tensor_is_advised_to_its_end() {
        let mut consumer = Consumer::new();
        consumer.ask(0);
        let LeadStep::Ask(first) = consumer.next() else { panic!("nothing is asked for") };
        assert_eq!((first.offset, first.len), (0, STEP_BYTES));
        consumer.cursor.finish(|| u64::MAX);
        assert_eq!(consumer.asked(), STEP_BYTES..TENSOR_BYTES);
        assert_eq!(consumer.next(), LeadStep::End);
    }

    #[test]
    fn tensors_left_behind_when_the_order_changed_are_advised_at_the_end() {
        let backwards: Vec<_> = (0..TENSORS as u32).rev().collect();
        let mut consumer = Consumer::of_order(backwards);
        consumer.ask(40);
        assert!(matches!(consumer.next(), LeadStep::Ask(_)));
        let mut asked_bytes = 0;
        for number in (0..TENSORS).rev().filter(|&number| number != 40) {
            consumer.ask(number);
            while let LeadStep::Ask(range) = consumer.next() {
                asked_bytes += range.len;
            }
        }
        assert_eq!(asked_bytes + STEP_BYTES, TENSORS as u64 * TENSOR_BYTES, "with that of the first tensor");
        assert_eq!(consumer.next(), LeadStep::End);
    }

    #[test]
    fn requested_tensors_are_advised_to_the_end_as_far_as_memory_allows() {
        let mut consumer = Consumer::new();
        (0..TENSORS).for_each(|number| consumer.ask(number));
        let room = TENSORS as u64 / 2 * TENSOR_BYTES;
        consumer.cursor.finish(|| room);
        assert_eq!(consumer.asked(), 0..room);
        assert_eq!(consumer.next(), LeadStep::End);
    }
}
