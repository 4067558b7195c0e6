//! [`LeadFile`]: the file that a lead reads, and the limits on the length of the lead.

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
    /// Where the program began.
    pub run: Arc<Run>,
}

impl LeadFile {
    /// Returns the budget of a lead that starts with `first_bytes` and may grow to the limit.
    pub fn budget(&self, first_bytes: u64) -> Budget {
        Budget::new(first_bytes, self.limit_bytes)
    }

    /// Returns the initial length of a lead after a tensor of `len` bytes. It is as long as the tensor, within bounds:
    /// if the program soon jumps elsewhere, the lead wastes no more than the program has used.
    pub fn first_bytes(&self, len: u64) -> u64 {
        len.clamp(LEAST_DATA_BYTES, FIRST_BYTES).min(self.limit_bytes)
    }

    /// Returns the initial length of a stream that begins with a request for a tensor of `len` bytes. A stream reads a
    /// row at once. If layers are shuffled, it has room for two of them.
    pub fn stream_first_bytes(&self, guess: &Guess, request: Request, len: u64) -> u64 {
        if request.row_end.is_some() {
            return self.stream_bytes();
        }
        let layers_bytes = guess.is_shuffled().then(|| self.layers_bytes(request.place, guess.order));
        layers_bytes.flatten().unwrap_or_else(|| self.first_bytes(len))
    }

    /// Returns the total length of two layers' tensors from a place on, if a stream has room for them. Returns `None`
    /// for files without layers.
    fn layers_bytes(&self, place: usize, order: usize) -> Option<u64> {
        let (count, two_layers) = (self.tensors.ranges.len(), 2 * self.tensors.layer_tensors);
        let end = count.min(place + two_layers);
        let bytes = (two_layers < count).then(|| self.tensors.bytes_of(place..end, order));
        bytes.filter(|&bytes| bytes <= self.stream_bytes())
    }

    /// Returns the maximum length of a stream's lead. In the next file, a lead begins with half of it.
    pub fn stream_bytes(&self) -> u64 {
        self.limit_bytes.min(USUAL_BYTES)
    }
}
