//! The read-ahead under `WeightFile` and `Checkpoint`: made when the first tensor of a file is asked for.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;

use crate::error::Result;
use crate::fetch::crew::PERIOD;
use crate::mapped_file::Opened;
use crate::natural;
use crate::os::process::fork;
use crate::slicing::Selection;
use crate::streaming::engine::{Landed, NextTensor};
use crate::streaming::guess::FileTensors;
use crate::streaming::lead::{Answer, Lead};
use crate::weights::header::{Header, TensorEntry};

/// The lead of one file; `None` inside if the file is not worth one.
#[derive(Debug)]
pub struct FileLead {
    limit_bytes: Option<u64>,
    lead: OnceLock<Option<Lead>>,
    is_closed: AtomicBool,
}

impl FileLead {
    /// `limit_bytes` is the longest lead, `None` for one that follows the free memory, 0 for none.
    pub fn new(limit_bytes: Option<u64>) -> Self {
        Self { limit_bytes, lead: OnceLock::new(), is_closed: AtomicBool::new(false) }
    }

    /// Returns whether the file is read ahead.
    pub fn is_on(&self) -> bool {
        self.lead.get().is_some_and(|lead| lead.as_ref().is_some_and(|lead| !lead.is_off()))
    }

    /// Notes that the tensor of `len` bytes at `offset` of the file is asked for, or a part of it. Waits for the bytes
    /// and returns them if they are read into memory of their own.
    pub fn follow(
        &self,
        py: Python<'_>,
        header: &Header,
        opened: impl FnOnce() -> Result<Arc<Opened>>,
        (offset, len): (u64, u64),
        selection: Option<&Selection>,
    ) -> PyResult<Option<Landed>> {
        let is_off = self.lead.get().is_some() && !self.is_on();
        if len == 0 || self.limit_bytes == Some(0) || self.is_closed.load(Ordering::Relaxed) || is_off {
            return Ok(None);
        }
        let opened = opened()?;
        let answer = py.detach(|| {
            let lead = fork::get_or_make(&self.lead, || self.made(header, opened));
            lead.as_ref().map(|lead| (lead, lead.ask(offset, selection)))
        });
        let Some((lead, Answer::InStream(stream, number))) = answer else { return Ok(None) };
        loop {
            match py.detach(|| stream.take(number, PERIOD)) {
                Ok(NextTensor::Landed(landed)) => {
                    py.detach(|| lead.note_taken(&landed));
                    return Ok(Some(landed));
                }
                Ok(NextTensor::NotYet) => py.check_signals()?,
                Ok(NextTensor::End) => return Ok(None),
                // Perhaps of another tensor: the file itself tells.
                Err(_) => {
                    py.detach(|| lead.close());
                    return Ok(None);
                }
            }
        }
    }

    fn made(&self, header: &Header, opened: Arc<Opened>) -> Option<Lead> {
        let seed = RandomState::new().hash_one(&opened.path);
        if !Lead::is_worth_it(&opened, self.limit_bytes, seed) {
            return None;
        }
        let with_bytes = |entry: &TensorEntry<'_>| entry.len > 0;
        let ranges: Vec<_> =
            header.tensors_by_offset().filter(with_bytes).map(|entry| (entry.offset, entry.len)).collect();
        let number =
            |entry: &TensorEntry<'_>| ranges.partition_point(|&(offset, _)| offset < entry.offset) as u32;
        let mut tensors: Vec<_> = header.tensors().filter(with_bytes).collect();
        let by_name = tensors.iter().map(number).collect();
        tensors.sort_by(|one, other| natural::compare(one.name.as_bytes(), other.name.as_bytes()));
        let by_layer = tensors.iter().map(number).collect();
        let kinds = header
            .tensors_by_offset()
            .filter(with_bytes)
            .map(|entry| natural::kind_of(entry.name.as_bytes()));
        let tensors = FileTensors::new(ranges.clone(), kinds.collect(), vec![by_name, by_layer]);
        Some(Lead::new(opened, tensors, self.limit_bytes))
    }

    /// Waits until the kernel was asked for all that was asked for here.
    pub fn finish(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(Some(lead)) = self.lead.get() {
            while !py.detach(|| lead.finish(PERIOD)) {
                py.check_signals()?;
            }
        }
        Ok(())
    }

    /// Stops reading ahead.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        if let Some(Some(lead)) = self.lead.get() {
            lead.close();
        }
    }
}
