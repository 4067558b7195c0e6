//! [`WarmShard`]: the tensors of a shard that `warm` reads before the program requests them.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::fetch::crew::PERIOD;
use crate::slicing::Selection;
use crate::streaming::engine::{Landed, NextTensor};
use crate::streaming::warm::{WarmSlot, Warmed};

/// A shard, identified by the slot of its checkpoint's warm lead and its number there.
pub struct WarmShard {
    slot: Arc<WarmSlot>,
    number: usize,
}

/// The state of a tensor that belongs to the warm lead.
pub enum WarmTensor {
    /// Its pages are in the page cache, now or soon.
    InCache,
    Landed(Landed),
}

impl WarmShard {
    pub fn new(slot: Arc<WarmSlot>, number: usize) -> Self {
        Self { slot, number }
    }

    /// Returns whether a warm lead has read into the page cache.
    pub fn has_filled_cache(&self) -> bool {
        self.slot.has_filled_cache()
    }

    /// Takes the tensor at `offset` of the shard, or a part of it, and waits for bytes that are read into memory.
    /// Returns `None` if the warm lead does not have the tensor.
    pub fn take(
        &self,
        py: Python<'_>,
        offset: u64,
        selection: Option<&Selection>,
    ) -> PyResult<Option<WarmTensor>> {
        let Some(lead) = self.slot.lead() else { return Ok(None) };
        let want = match py.detach(|| lead.ask(self.number, offset, selection)) {
            Some(Warmed::InMemory(want)) => want,
            Some(Warmed::InCache) => return Ok(Some(WarmTensor::InCache)),
            None => return Ok(None),
        };
        loop {
            match py.detach(|| lead.take(want, PERIOD)) {
                NextTensor::Landed(landed) => return Ok(Some(WarmTensor::Landed(landed))),
                NextTensor::End => return lead.change().map_or(Ok(None), |error| Err(error.into())),
                NextTensor::NotYet => py.check_signals().inspect_err(|_| lead.release(want))?,
            }
        }
    }
}
