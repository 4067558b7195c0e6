//! [`LeadStreams`]: the streams that read the predicted tensors of a file into owned memory.

use std::sync::Arc;

use crate::error::{Error, Result};
#[cfg(test)]
use crate::fetch::crew::Limits;
use crate::mapped_file::Opened;
use crate::slicing::Selection;

use super::benefit::Benefit;
use super::expected::Expected;
use super::guess::{Guess, Request};
use super::lead_count::readers_of_lead;
use super::lead_cursor::CREDIT;
use super::lead_file::LeadFile;
use super::uses::NEAR_TENSORS;
use crate::streaming::engine::Stream;
use crate::streaming::options::StreamOptions;
use crate::streaming::pace::Pace;
use crate::streaming::plan::{FIRST_BYTES, REQUEST_BYTES, Want};

/// The source of a requested tensor.
#[derive(Debug)]
pub enum Answer {
    /// The program reads the tensor from the file.
    InFile,
    /// The stream reads the tensor, under this want number.
    InStream(Arc<Stream>, usize),
}

/// The current stream, and the records that decide how the next one reads.
#[derive(Debug, Default)]
pub struct LeadStreams {
    pub current: Option<Expected>,
    pub pace: Arc<Pace>,
    benefit: Benefit,
    /// Whether streams have no threads, because a test takes their turns.
    #[cfg(test)]
    pub is_by_hand: bool,
}

impl LeadStreams {
    /// Answers a request for the tensor `number`, or for a part of it. Takes it from the current stream if that stream
    /// has it or will have it soon. Otherwise may start another stream.
    pub fn answer(
        &mut self,
        file: &LeadFile,
        opened: &Arc<Opened>,
        guess: &Guess,
        (number, request): (usize, Request),
        selection: Option<&Selection>,
    ) -> Result<Answer> {
        let Request { place, is_next, is_first, is_expected, .. } = request;
        let (offset, len) = file.tensors.ranges[number];
        let used_bytes = selection.map_or(len, |part| part.result_bytes);
        if !is_first {
            return Ok(Answer::InFile);
        }
        let has_threads = guess.uses.has_threads;
        // Several threads request tensors in nearly the right order, so a tensor further ahead is worth a wait. A
        // single thread has skipped the tensors before this one, so they are not worth a wait.
        let near = if has_threads && !request.has_left_out { NEAR_TENSORS } else { 1 };
        let found = self.current.as_mut().and_then(|it| Some((it.reserve(place, selection, near)?, it)));
        if let Some((want, expected)) = found {
            expected.used_bytes += used_bytes;
            let bound = expected.first_bytes.saturating_add(CREDIT.saturating_mul(expected.used_bytes));
            expected.stream.double(file.stream_bytes().min(bound));
            return Ok(Answer::InStream(expected.stream.clone(), want));
        }
        if !is_next || request.has_turned {
            file.run.begin(guess.order, place);
        }
        // The program has jumped, and the old stream would slow down the reads at the new place. No other thread waits
        // for it.
        if let Some(expected) = self.current.as_ref().filter(|_| !is_next && !has_threads) {
            expected.stream.hold();
        }
        let is_large = selection.is_none() && len > REQUEST_BYTES;
        if selection.is_none() && len > file.limit_bytes {
            return Ok(Answer::InFile);
        }
        if !guess.has_parts && self.benefit.may_begin(&file.tensors, guess, request) {
            let first_bytes = file.stream_first_bytes(guess, request, len);
            let before = self.start(file, opened, guess, (place, true), first_bytes)?;
            self.benefit.note_stream(before.map(|it| it.used_bytes >= it.first_bytes));
            let Some(expected) = &self.current else { return Ok(Answer::InFile) };
            expected.stream.reserve(0, 1);
            return Ok(Answer::InStream(expected.stream.clone(), 0));
        }
        // Several threads read a requested part without a stream. The stream starts after it, once the next part can be
        // predicted.
        let behind = place + 1..file.tensors.ranges.len();
        if is_next
            && guess.has_parts
            && (is_expected || !self.benefit.is_fruitless())
            && let Some(next) = guess.uses.next_place(&file.tensors, guess.order, behind)
            && let number = file.tensors.number_at(next, guess.order)
            && let Some(wanted) = guess.expected(&file.tensors, number)
            && !self.current.as_ref().is_some_and(|it| it.has(next, wanted.selection.as_ref()))
        {
            let before = self.start(file, opened, guess, (next, false), file.first_bytes(FIRST_BYTES))?;
            self.benefit.note_stream(before.map(|it| it.used_bytes > 0));
        }
        if is_large {
            // The tensor was left behind, or it is not yet clear that more will follow. Read it alone.
            let alone = Want { file: 0, offset, len, selection: None };
            let stream = self.stream_of(file, opened, &[alone], file.first_bytes(FIRST_BYTES))?;
            stream.reserve(0, 1);
            return Ok(Answer::InStream(Arc::new(stream), 0));
        }
        Ok(Answer::InFile)
    }

    /// Starts a stream of the tensors that are predicted from place `first` on. It reads at most `memory_bytes` ahead.
    /// If `is_asked`, it also reads the tensor at `first`. Starts no stream if nothing is predicted. Returns the
    /// previous stream.
    pub fn start(
        &mut self,
        file: &LeadFile,
        opened: &Arc<Opened>,
        guess: &Guess,
        (first, is_asked): (usize, bool),
        memory_bytes: u64,
    ) -> Result<Option<Expected>> {
        if !file.seat.take() {
            return Err(Error::argument("other files are read ahead"));
        }
        let (end, is_row) = (guess.row_end().unwrap_or(file.tensors.ranges.len()), guess.row_end().is_some());
        let expected = (first..end).filter_map(|place| {
            let number = file.tensors.number_at(place, guess.order);
            let is_awaited = guess.uses.awaits(&file.tensors, guess.order, place);
            let is_wanted = is_awaited || (is_asked && place == first);
            let want = guess.expected(&file.tensors, number)?;
            let bytes = want.selection.as_ref().map_or(want.len, |selection| selection.result_bytes);
            (is_wanted && bytes <= file.limit_bytes).then_some((place, want))
        });
        let (places, wants): (Vec<_>, Vec<_>) = expected.unzip();
        if wants.is_empty() {
            return Ok(self.current.take());
        }
        let stream = Arc::new(self.stream_of(file, opened, &wants, memory_bytes)?);
        let first_bytes = memory_bytes.min(wants.iter().map(|want| want.len).sum());
        Ok(self.current.replace(Expected { stream, wants, places, is_row, first_bytes, used_bytes: 0 }))
    }

    /// Starts a stream that reads `bytes` ahead at first.
    fn stream_of(&self, file: &LeadFile, opened: &Arc<Opened>, wants: &[Want], bytes: u64) -> Result<Stream> {
        let (memory_bytes, readers) = (file.stream_bytes(), readers_of_lead());
        #[cfg(test)]
        let readers = if self.is_by_hand { Limits { first: 0, most: 0 } } else { readers };
        let options = StreamOptions { memory_bytes, readers, ..StreamOptions::default() };
        let opened = opened.clone();
        let open = Box::new(move |_| Ok(opened.clone()));
        Stream::start(wants, open, None, options.beginning_with(bytes, wants), Some(self.pace.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fetch::next::Next;
    use crate::leading::file_tensors::FileTensors;
    use crate::leading::lead_count::Seat;
    use crate::leading::run::Run;
    use crate::mapped_file::RequestedMode;
    use crate::mapped_file::test_file;
    use crate::natural::NameKinds;
    use crate::streaming::sample::drawn;

    /// Requests the tensors of four layers, each in the order of its modules. `turns` returns the number of turns that
    /// the threads may take before a request. After it, they take turns until the requested tensor is there. Returns
    /// the streams of all layers but the first.
    fn streams_of_layers(mut turns: impl FnMut(u64) -> u64) -> Vec<Arc<Stream>> {
        const LEN: u64 = 256 << 10;
        const COUNT: u64 = 32;
        let opened = test_file::opened(&vec![1; (COUNT * LEN) as usize], RequestedMode::Read);
        let names = (0..COUNT).map(|number| NameKinds { kind: number % 8, series: number % 8 }).collect();
        let ranges = (0..COUNT).map(|number| (number * LEN, LEN)).collect();
        let tensors = FileTensors::new(ranges, names, vec![]).expect("memory");
        let run = Run::new(opened.facts.identity);
        let file = LeadFile { tensors, limit_bytes: COUNT * LEN, seat: Seat::default(), run };
        let mut streams = LeadStreams { is_by_hand: true, ..LeadStreams::default() };
        let (mut guess, mut found) = (Guess::new(&file.tensors).expect("memory"), Vec::new());
        for request in 0..COUNT {
            if let Some(expected) = &streams.current {
                let _ = (0..turns(request)).all(|_| expected.stream.take_turn());
            }
            let (layer, of) = (request / 8, [7, 5, 6, 4, 2, 3, 0, 1][(request % 8) as usize]);
            let number = (8 * layer + of) as usize;
            let noted = guess.note(&file.tensors, number, None, std::thread::current().id());
            let answer = streams.answer(&file, &opened, &guess, (number, noted), None);
            let Ok(Answer::InStream(stream, want)) = answer else {
                panic!("{of} of layer {layer} is left to page faults");
            };
            while matches!(stream.take(want, Duration::ZERO), Ok(Next::NotYet)) {
                assert!(stream.take_turn(), "{of} of layer {layer} never comes");
            }
            if layer >= 1 {
                found.push(stream);
            }
        }
        file.seat.give_up();
        found
    }

    #[test]
    fn shuffled_layers_come_from_one_stream_whatever_its_threads_do() {
        let no_turn = |_| 0;
        let all_turns = |_| u64::MAX;
        assert_one_stream(&streams_of_layers(no_turn), "no thread has begun");
        assert_one_stream(&streams_of_layers(all_turns), "the threads have done all that they may");
        for seed in 0..8 {
            let streams = streams_of_layers(|request| drawn(seed, request, 12));
            assert_one_stream(&streams, &format!("seed {seed}"));
        }
    }

    fn assert_one_stream(streams: &[Arc<Stream>], of: &str) {
        assert!(streams.windows(2).all(|pair| Arc::ptr_eq(&pair[0], &pair[1])), "{of}");
    }

    #[test]
    fn a_stream_of_shuffled_layers_has_room_for_two_layers() {
        const LEN: u64 = 256 << 10;
        let opened = test_file::opened(&[1; 8], RequestedMode::Read);
        let first_bytes = |layer_tensors: u64, limit_bytes| {
            let names = (0..64).map(|number| NameKinds { kind: 0, series: number % layer_tensors }).collect();
            let ranges = (0..64).map(|number| (number * LEN, LEN)).collect();
            let run = Run::new(opened.facts.identity);
            let tensors = FileTensors::new(ranges, names, vec![]).expect("memory");
            let file = LeadFile { tensors, limit_bytes, seat: Seat::default(), run };
            let mut guess = Guess::new(&file.tensors).expect("memory");
            let thread = std::thread::current().id();
            let asked = [7, 5, 6, 4].map(|number| guess.note(&file.tensors, number, None, thread));
            asked.map(|request| file.stream_first_bytes(&guess, request, LEN))[3] / LEN
        };
        assert_eq!(first_bytes(8, 64 * LEN), 16);
        assert_eq!(first_bytes(8, 15 * LEN), 4, "two layers are more than the limit");
        assert_eq!(first_bytes(32, 64 * LEN), 4, "there are just two");
    }
}
