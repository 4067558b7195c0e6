//! `StagedStream`: reads tensors into the caller's memory, on their way to a device. The Python package `devices/` uses
//! it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyList;

use super::checkpoint::PyCheckpoint;
use super::export::drop_detached;
use super::stream::wants_of;
use super::writable::GivenMemory;
use crate::fetch::crew::{Limits, PERIOD, check_threads};
use crate::fetch::next::Next;
use crate::os::fault;
use crate::os::memory::arena::Arena;
use crate::os::memory::parts::WritableMemory;
use crate::streaming::engine::Stream;
use crate::streaming::options::{CacheUse, READERS, StreamOptions};

/// A tensor in the caller's memory: its number, its place there, and its length in bytes.
type StagedTensor = (usize, usize, usize);

#[pyclass(name = "StagedStream", module = "pagestream._native", frozen)]
pub struct PyStagedStream {
    /// `None` only during `drop`.
    stream: Option<Stream>,
    arena: Arc<Arena>,
    /// The memory of the groups that were returned and not given back yet, in order.
    handed_out: Mutex<VecDeque<Arc<dyn WritableMemory>>>,
}

#[pymethods]
impl PyStagedStream {
    /// Starts with the first number of threads. While storage is slow, up to the second number read.
    #[new]
    fn new(
        py: Python<'_>,
        checkpoint: &PyCheckpoint,
        wanted: &Bound<'_, PyList>,
        staging: &Bound<'_, PyAny>,
        first_threads: usize,
        most_threads: Option<usize>,
        cache_use: &str,
    ) -> PyResult<Self> {
        let cache = CacheUse::from_word(cache_use)?;
        check_threads(first_threads)?;
        let most = most_threads.unwrap_or(READERS.most).max(first_threads);
        let readers = Limits { first: first_threads, most };
        let wants = wants_of(checkpoint, wanted)?;
        let files = checkpoint.shared();
        let arena = Arc::new(Arena::new(GivenMemory::of(staging)?));
        let stream = py.detach(|| {
            let readers = StreamOptions {
                memory_bytes: arena.len() as u64,
                readers,
                cache,
                ..StreamOptions::default()
            }
            .readers_of(&wants);
            let open = Box::new(move |number| files.file(number)?.file.opened());
            Stream::start_in(arena.clone(), &wants, open, readers, cache)
        })?;
        Ok(Self { stream: Some(stream), arena, handed_out: Mutex::default() })
    }

    /// Returns the next tensors in the order of the wants; their bytes are contiguous. None at the end. Without `wait`
    /// the list may be empty.
    fn next(&self, py: Python<'_>, wait: bool) -> PyResult<Option<Vec<StagedTensor>>> {
        fault::reinstall();
        let Some(stream) = &self.stream else { return Ok(None) };
        let patience = if wait { PERIOD } else { Duration::ZERO };
        let mut left = stream.untaken_beside_next();
        let mut found = Vec::with_capacity(left);
        loop {
            match py.detach(|| stream.next(patience))? {
                Next::Ready(landed) => {
                    let start = self.arena.offset_of(landed.memory.as_ptr());
                    found.push((landed.place.want, start + landed.place.offset, landed.place.len));
                    left -= 1;
                    if left == 0 {
                        self.handed_out
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push_back(landed.memory);
                        return Ok(Some(found));
                    }
                }
                Next::End => return Ok(None),
                Next::NotYet if wait => py.check_signals()?,
                Next::NotYet => return Ok(Some(found)),
            }
        }
    }

    /// Gives back the memory of the tensors from the oldest call of `next`.
    fn give_back(&self, py: Python<'_>) {
        let oldest = self.handed_out.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        py.detach(|| {
            drop(oldest);
            self.stream.as_ref().map(Stream::wake);
        });
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.stream.as_ref().map(Stream::close));
    }
}

impl Drop for PyStagedStream {
    fn drop(&mut self) {
        drop_detached(self.stream.take());
    }
}
