//! The read-ahead for `WeightFile` and `Checkpoint`. It is created when the program requests the first tensor of a
//! file.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use pyo3::prelude::*;

use super::next_file::NextFile;
use super::waiting::wait;
use super::warming_shard::{WarmTensor, WarmingShard};
use crate::allocate;
use crate::error::{Error, Result};
use crate::fetch::crew::{KeepGoing, PERIOD};
use crate::fetch::next::Next;
use crate::leading::file_tensors::FileTensors;
use crate::leading::lead::{Handover, Lead};
use crate::leading::lead_count::Seat;
use crate::leading::lead_streams::Answer;
use crate::leading::small_file;
use crate::mapped_file::Opened;
use crate::os::memory::Uninit;
use crate::os::process::fork;
use crate::slicing::{Selection, Sequence};
use crate::streaming::engine::Landed;
use crate::streaming::sample;
use crate::weights::header::Header;

/// Parts up to this length are left to page faults. Each fault also brings in the surrounding 128 KiB by default.
const MAX_FAULT_BYTES: u64 = 16 << 10;

/// The lead of a file.
pub struct FileLead {
    limit_bytes: Option<u64>,
    /// The inner `None` means that the file is not worth a lead.
    lead: OnceLock<Option<Lead>>,
    /// A change to the file that was noticed during read-ahead. A tensor from the mapping would not report it.
    change: OnceLock<Error>,
    /// The last error of a reader, until the program requests the affected tensor.
    failure: Mutex<Option<Error>>,
    /// Parts that are requested in sequence.
    sequence: Sequence,
    /// Whether to widen the read-ahead of page faults once the program requests more than a short part of a tensor.
    is_narrow: AtomicBool,
    is_closed: AtomicBool,
    /// Whether the program has the file open.
    is_used: Arc<AtomicBool>,
    next: Option<NextFile>,
    warm: Option<WarmingShard>,
}

impl std::fmt::Debug for FileLead {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FileLead").field("lead", &self.lead).finish_non_exhaustive()
    }
}

impl Drop for FileLead {
    /// Releases the next file. Closing this file does not release it while another thread holds it.
    fn drop(&mut self) {
        self.set_used(false);
    }
}

impl FileLead {
    /// Creates a lead. `limit_bytes` is its maximum length: `None` follows the free memory, and 0 disables it. The lead
    /// continues with the file `next`.
    pub fn new(limit_bytes: Option<u64>, next: Option<NextFile>) -> Self {
        Self {
            limit_bytes,
            lead: OnceLock::new(),
            change: OnceLock::new(),
            failure: Mutex::new(None),
            sequence: Sequence::default(),
            is_narrow: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_used: Arc::new(AtomicBool::new(true)),
            next,
            warm: None,
        }
    }

    /// Creates the lead of a checkpoint's shard. `warm` may read the shard's tensors before the program requests them.
    pub fn of_shard(limit_bytes: Option<u64>, next: Option<NextFile>, warm: WarmingShard) -> Self {
        let mut lead = Self::new(limit_bytes, next);
        lead.warm = Some(warm);
        lead
    }

    /// Records whether the program has the file open.
    pub fn set_used(&self, is_used: bool) {
        self.is_used.store(is_used, Ordering::Relaxed);
    }

    /// Returns whether the file is read ahead.
    pub fn is_on(&self) -> bool {
        self.lead.get().is_some_and(|lead| lead.as_ref().is_some_and(|lead| !lead.is_off()))
    }

    /// Returns whether to read the tensor part at `range` of the file. In a cold file, page faults come one at a time.
    /// For short parts out of sequence a fault is better, because its surroundings serve other parts.
    pub fn is_to_be_read(&self, range: &Range<u64>) -> bool {
        self.is_on() && (range.end - range.start > MAX_FAULT_BYTES || self.sequence.goes_on_with(range))
    }

    /// Reads the tensor part at `range` of the file, if it continues a sequence. Returns whether it did.
    pub fn read_in_sequence(
        &self,
        opened: &Opened,
        range: Range<u64>,
        out: Uninit<'_>,
        keep_going: &mut KeepGoing<'_>,
    ) -> Result<bool> {
        let limit_bytes = self.limit_bytes.unwrap_or(u64::MAX);
        Ok(self.is_on() && self.sequence.fill(opened, range, limit_bytes, out, keep_going)?)
    }

    /// Records the request for the tensor of `len` bytes at `offset` of the file, or for a part of it. If a stream or
    /// `warm` reads the bytes into owned memory, waits for them and returns them.
    pub fn follow(
        &self,
        py: Python<'_>,
        header: &Header,
        opened: impl FnOnce() -> Result<Arc<Opened>>,
        (offset, len): (u64, u64),
        selection: Option<&Selection>,
    ) -> PyResult<Option<Landed>> {
        match self.take_warm(py, offset, selection)? {
            Some(WarmTensor::Landed(landed)) => return Ok(Some(landed)),
            Some(WarmTensor::InCache) => return Ok(None),
            None => {}
        }
        let is_off = self.lead.get().is_some() && !self.is_on() && !self.is_narrow.load(Ordering::Relaxed);
        if len == 0 || self.is_closed.load(Ordering::Relaxed) || is_off {
            return self.left_to_file(offset, len);
        }
        let opened = opened()?;
        let answer = py.detach(|| {
            let lead = self.lead(header, &opened);
            let is_short = selection.is_some_and(|it| it.is_run() && it.result_bytes <= MAX_FAULT_BYTES);
            if !is_short && self.is_narrow.swap(false, Ordering::Relaxed) {
                opened.widen_read_ahead();
            }
            let lead = lead?;
            let answer = lead.ask(&opened, offset, selection);
            let next = self.next.as_ref().filter(|next| !next.is_begun());
            Some((lead, answer, next.and_then(|next| Some((next, lead.at_end()?)))))
        });
        let Some((lead, answer, next)) = answer else { return Ok(None) };
        let begun = next.map_or(Ok(()), |(next, handover)| next.begin(py, handover, self.is_used.clone()));
        let Answer::InStream(stream, number) = answer else {
            return begun.and_then(|()| self.left_to_file(offset, len));
        };
        let give_up = |_: &PyErr| {
            stream.release(number);
            lead.note_taken(0);
        };
        begun.inspect_err(give_up)?;
        // A failure of the stream ends the wait, but raises no exception here, because another tensor may be affected.
        let taken = wait(py, |patience| {
            PyResult::Ok(
                stream
                    .take(number, patience)
                    .map_or_else(|error| Next::Ready(Err(error)), |next| next.map(Ok)),
            )
        });
        match taken.inspect_err(give_up)? {
            Some(Ok(landed)) => {
                py.detach(|| lead.note_taken(landed.place.len as u64));
                return Ok(Some(landed));
            }
            None => py.detach(|| lead.note_taken(0)),
            Some(Err(error)) => {
                if error.is_change() {
                    fork::get_or_make(&self.change, || error);
                } else {
                    fork::with_lock(&self.failure, |failure| *failure = Some(error));
                }
                py.detach(|| lead.close());
            }
        }
        self.left_to_file(offset, len)
    }

    /// Answers for a tensor that is not read ahead. If a reader failed in its bytes, raises that error once: a view
    /// would report it later and with less detail.
    fn left_to_file(&self, offset: u64, len: u64) -> PyResult<Option<Landed>> {
        let here = |failure: &mut Option<Error>| failure.take_if(|failure| failure.is_of_bytes(offset, len));
        let failed = self.change.get().cloned().or_else(|| fork::with_lock(&self.failure, here));
        failed.map_or(Ok(None), |error| Err(error.into()))
    }

    /// Takes a tensor, or a part of it, from the lead of `warm`. See [`WarmingShard::take`].
    pub fn take_warm(
        &self,
        py: Python<'_>,
        offset: u64,
        selection: Option<&Selection>,
    ) -> PyResult<Option<WarmTensor>> {
        self.warm.as_ref().map_or(Ok(None), |warm| warm.take(py, offset, selection))
    }

    /// Reads ahead for a program that is predicted to continue here from another file.
    pub fn begin(&self, header: &Header, opened: Arc<Opened>, handover: &Handover) -> Result<()> {
        self.lead(header, &opened).map_or(Ok(()), |lead| lead.begin(handover))
    }

    /// Returns the lead, created once there is room for it. `None` without a lead, and after the file is closed.
    fn lead(&self, header: &Header, opened: &Arc<Opened>) -> Option<&Lead> {
        if self.lead.get().is_none() && self.limit_bytes != Some(0) && !Seat::is_free() {
            self.is_narrow.store(true, Ordering::Relaxed);
            return None;
        }
        let lead = fork::get_or_make(&self.lead, || self.made(header, opened.clone())).as_ref();
        if self.is_closed.load(Ordering::Relaxed) {
            lead.inspect(|lead| lead.close()); // It was created after the file was closed.
            return None;
        }
        lead
    }

    fn made(&self, header: &Header, opened: Arc<Opened>) -> Option<Lead> {
        let seed = RandomState::new().hash_one(opened.path());
        let has_lead = self.limit_bytes != Some(0);
        let is_small = has_lead && small_file::fetch_if_small(&opened, header.data_start, seed);
        if is_small || !sample::is_cold(&opened, seed) {
            return None;
        }
        self.is_narrow.store(true, Ordering::Relaxed);
        if !has_lead {
            return None;
        }
        let with_bytes = header.tensors_by_offset().filter(|entry| entry.len > 0);
        let named = with_bytes.map(|entry| (entry.name.as_bytes(), (entry.offset, entry.len)));
        // Without memory for these lists there is no lead.
        let named = allocate::collected(named, "the tensors of a file").ok()?;
        let tensors = FileTensors::of(&named).ok()?;
        let keeps_cache = self.warm.as_ref().is_some_and(WarmingShard::has_filled_cache);
        let kernel_keeps_up = sample::kernel_keeps_up(&opened, seed);
        Lead::new(opened, tensors, self.limit_bytes, keeps_cache, kernel_keeps_up).ok()
    }

    /// Waits until the kernel has received all requests. Returns false without a lead.
    pub fn finish(&self, py: Python<'_>) -> PyResult<bool> {
        let Some(Some(lead)) = self.lead.get() else { return Ok(false) };
        while !py.detach(|| lead.finish(PERIOD)) {
            py.check_signals()?;
        }
        Ok(true)
    }

    /// Stops reading ahead until the program requests another tensor.
    pub fn rest(&self) {
        if let Some(Some(lead)) = self.lead.get() {
            lead.rest();
        }
    }

    /// Stops reading ahead.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.sequence.close();
        if let Some(Some(lead)) = self.lead.get() {
            lead.close();
        }
    }
}
