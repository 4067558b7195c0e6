//! [`WarmingShard`]: the tensors of a shard that `warm` reads before the program requests them.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::slicing::Selection;
use crate::streaming::engine::Landed;
use crate::warming::warm::{Warmed, WarmingSlot};

use super::waiting::wait;

/// A shard, identified by the slot of its checkpoint's warming and its number there.
pub struct WarmingShard {
    slot: Arc<WarmingSlot>,
    number: usize,
}

/// The state of a tensor that was warmed.
pub enum WarmTensor {
    /// Its pages are in the page cache, now or soon.
    InCache,
    Landed(Landed),
}

impl WarmingShard {
    pub fn new(slot: Arc<WarmingSlot>, number: usize) -> Self {
        Self { slot, number }
    }

    /// Returns whether `warm` has read into the page cache.
    pub fn has_filled_cache(&self) -> bool {
        self.slot.has_filled_cache()
    }

    /// Takes the tensor at `offset` of the shard, or a part of it, and waits for bytes that are read into memory.
    /// Returns `None` if the tensor was not warmed.
    pub fn take(
        &self,
        py: Python<'_>,
        offset: u64,
        selection: Option<&Selection>,
    ) -> PyResult<Option<WarmTensor>> {
        let Some(warming) = self.slot.warming() else { return Ok(None) };
        let want = match py.detach(|| warming.ask(self.number, offset, selection)) {
            Some(Warmed::InMemory(want)) => want,
            Some(Warmed::InCache) => return Ok(Some(WarmTensor::InCache)),
            None => return Ok(None),
        };
        let taken = wait(py, |patience| PyResult::Ok(warming.take(want, patience)));
        match taken.inspect_err(|_| warming.release(want))? {
            Some(landed) => Ok(Some(WarmTensor::Landed(landed))),
            None => warming.change().map_or(Ok(None), |error| Err(error.into())),
        }
    }
}
