//! [`LeadFile`]: the file that a lead reads, and how long the lead may be.

use std::sync::Arc;

use crate::fetch::budget::Budget;

use super::file_tensors::FileTensors;
use super::guess::{Guess, Request};
use super::lead_count::Seat;
use super::run::Run;
use super::small_file::LEAST_DATA_BYTES;
use crate::streaming::options::USUAL_BYTES;
use crate::streaming::plan::FIRST_BYTES;

/// The file that a lead reads.
#[derive(Debug)]
pub struct LeadFile {
    pub tensors: FileTensors,
    pub limit_bytes: u64,
    pub seat: Seat,
    /// Where the consumer began.
    pub run: Arc<Run>,
}

impl LeadFile {
    /// A lead of `first_bytes`, which may become as long as the limit.
    pub fn budget(&self, first_bytes: u64) -> Budget {
        Budget::new(first_bytes, self.limit_bytes)
    }

    /// The first lead behind a tensor of `len` bytes: ahead of a consumer that soon leaves no more than it has used is read
    /// for nothing.
    pub fn first_bytes(&self, len: u64) -> u64 {
        len.clamp(LEAST_DATA_BYTES, FIRST_BYTES).min(self.limit_bytes)
    }

    /// The first lead of a stream that begins with a request for a tensor of `len` bytes. A row is read at once. A stream has
    /// room for two layers whose tensors are used in another order.
    pub fn stream_first_bytes(&self, guess: &Guess, request: Request, len: u64) -> u64 {
        if request.row_end.is_some() {
            return self.stream_bytes();
        }
        let layers_bytes = guess.is_shuffled().then(|| self.layers_bytes(request.place, guess.order));
        layers_bytes.flatten().unwrap_or_else(|| self.first_bytes(len))
    }

    /// Returns the bytes of as many tensors as two layers have, from a place on, if a stream has room for them. `None` in
    /// files without layers.
    fn layers_bytes(&self, place: usize, order: usize) -> Option<u64> {
        let (count, two_layers) = (self.tensors.ranges.len(), 2 * self.tensors.layer_tensors);
        let end = count.min(place + two_layers);
        let bytes = (two_layers < count).then(|| self.tensors.bytes_of(place..end, order));
        bytes.filter(|&bytes| bytes <= self.stream_bytes())
    }

    /// The longest lead of a stream. In the next file a lead begins with half of it.
    pub fn stream_bytes(&self) -> u64 {
        self.limit_bytes.min(USUAL_BYTES)
    }
}
