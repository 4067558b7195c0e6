//! Limits the amount in flight. The caller chooses the unit, for example bytes of a slice or batches of a stream.

use crate::os::process::limits;

/// The default memory budget is this share of the available memory, and at most [`MEMORY_BYTES`].
const MEMORY_SHARE: u64 = 8;
const MEMORY_BYTES: u64 = 1 << 30;

/// Returns the memory budget for a caller that gives none.
pub fn default_memory_bytes() -> u64 {
    (limits::available_memory_bytes() / MEMORY_SHARE).min(MEMORY_BYTES)
}

/// A limit, and the amount in flight.
///
/// ```text
///   take ──> in flight ──> give_back        room: in flight < limit
///   limit: first ──double──> … ──> most ──start_anew──> first
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    first: u64,
    limit: u64,
    most: u64,
    /// Negative if the consumer has overtaken the requests.
    in_flight: i64,
}

impl Budget {
    /// Creates a budget with a limit that begins at `first` and doubles up to `most`.
    pub fn new(first: u64, most: u64) -> Self {
        Self { first, limit: first, most: most.max(first), in_flight: 0 }
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn most(&self) -> u64 {
        self.most
    }

    pub fn has_room(&self) -> bool {
        self.in_flight < self.limit as i64
    }

    pub fn is_unused(&self) -> bool {
        self.in_flight <= 0
    }

    /// Returns whether there would be room with the largest limit.
    pub fn is_below_most(&self) -> bool {
        self.in_flight < self.most as i64
    }

    /// Returns whether less than half of the limit is in flight, so that refilling is worth its cost.
    pub fn is_half_used(&self) -> bool {
        self.in_flight < self.limit.div_ceil(2) as i64
    }

    pub fn take(&mut self, amount: u64) {
        self.in_flight = self.in_flight.saturating_add(amount as i64);
    }

    /// Takes back credit from the consumer.
    pub fn give_back(&mut self, amount: u64) {
        self.in_flight = self.in_flight.saturating_sub(amount as i64);
    }

    pub fn double(&mut self) {
        self.double_up_to(self.most);
    }

    /// Doubles the limit, but not beyond `bound`.
    pub fn double_up_to(&mut self, bound: u64) {
        self.limit = self.limit.saturating_mul(2).min(self.most).min(bound.max(self.limit));
    }

    pub fn start_anew(&mut self) {
        self.limit = self.first;
    }
}
