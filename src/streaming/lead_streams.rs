//! [`LeadStreams`]: the streams that read what the consumer of a file is expected to ask for next into owned memory.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::mapped_file::Opened;
use crate::slicing::Selection;

use super::benefit::Benefit;
use super::engine::Stream;
use super::expected::Expected;
use super::guess::{Guess, Request};
use super::lead_count::readers_of_lead;
use super::lead_cursor::CREDIT;
use super::lead_file::LeadFile;
use super::options::StreamOptions;
use super::pace::Pace;
use super::plan::{FIRST_BYTES, REQUEST_BYTES, Want};
use super::uses::NEAR_TENSORS;

/// The answer to a request.
#[derive(Debug)]
pub enum Answer {
    /// The tensor is to be used through the file.
    InFile,
    /// The stream will have the tensor's bytes, under this number.
    InStream(Arc<Stream>, usize),
}

/// The stream of what comes next, and what shows how the next one is to read.
#[derive(Debug, Default)]
pub struct LeadStreams {
    pub current: Option<Expected>,
    pub pace: Arc<Pace>,
    benefit: Benefit,
}

impl LeadStreams {
    /// Answers a request for a tensor, given by its number, or for a part of it: finds it in the stream that reads what comes
    /// next, or starts another one.
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
        let is_shuffled = !has_threads && guess.rows.is_shuffled();
        let shuffled = is_shuffled.then(|| file.layers_bytes(place, guess.order)).flatten();
        // Several threads ask in nearly the right order. One thread has passed over what comes before: it is not waited for,
        // unless layers are used in another order.
        let near = match shuffled {
            _ if request.has_left_out => 1,
            _ if has_threads => NEAR_TENSORS,
            Some(_) => file.tensors.layer_tensors,
            None => 1,
        };
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
        // What it reads is in the way of what the consumer has gone to. No other thread waits for it.
        if let Some(expected) = self.current.as_ref().filter(|_| !is_next && !has_threads) {
            expected.stream.hold();
        }
        let is_large = selection.is_none() && len > REQUEST_BYTES;
        if selection.is_none() && len > file.limit_bytes {
            return Ok(Answer::InFile);
        }
        if !guess.has_parts && self.benefit.may_begin(&file.tensors, guess, request) {
            let row_bytes = request.row_end.map(|_| file.stream_bytes());
            let first_bytes = row_bytes.or(shuffled).unwrap_or_else(|| file.first_bytes(len));
            let before = self.start(file, opened, guess, (place, true), first_bytes)?;
            self.benefit.note_stream(before.map(|it| it.used_bytes >= it.first_bytes));
            let Some(expected) = &self.current else { return Ok(Answer::InFile) };
            expected.stream.reserve(0, 1);
            return Ok(Answer::InStream(expected.stream.clone(), 0));
        }
        // A part is read by several threads as it is. The stream goes on behind it once the next one is known.
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
            // It was left behind, or nothing shows yet that others will follow: it is read alone.
            let alone = Want { file: 0, offset, len, selection: None };
            let stream = self.stream_of(file, opened, &[alone], file.first_bytes(FIRST_BYTES))?;
            stream.reserve(0, 1);
            return Ok(Answer::InStream(Arc::new(stream), 0));
        }
        Ok(Answer::InFile)
    }

    /// Starts to read what is expected from a place on, `memory_bytes` ahead, and what is there if that `is_asked` for.
    /// Nothing is read where nothing is expected. Returns the stream before.
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
        let end = guess.row_end().unwrap_or(file.tensors.ranges.len());
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
        Ok(self.current.replace(Expected { stream, wants, places, first_bytes, used_bytes: 0 }))
    }

    /// Starts to read, at first so many bytes ahead.
    fn stream_of(&self, file: &LeadFile, opened: &Arc<Opened>, wants: &[Want], bytes: u64) -> Result<Stream> {
        let (memory_bytes, readers) = (file.stream_bytes(), readers_of_lead());
        let options = StreamOptions { memory_bytes, readers, ..StreamOptions::default() };
        let opened = opened.clone();
        let open = Box::new(move |_| Ok(opened.clone()));
        Stream::start(wants, open, None, options.beginning_with(bytes, wants), Some(self.pace.clone()))
    }
}
