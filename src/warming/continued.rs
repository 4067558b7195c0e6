//! [`ContinuedStream`]: a stream that continues where a [`Warming`] is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::allocate;
use crate::error::Result;
use crate::fetch::next::Next;

use super::warm::Warming;
use crate::streaming::engine::{Inspect, Landed, Stream};
use crate::streaming::options::StreamOptions;
use crate::streaming::pieces::Files;
use crate::streaming::plan::{FIRST_BYTES, PLAN, Want};

/// The tensors of a plan, in order. Some come from a [`Warming`], which has them in memory or is reading them. A stream
/// reads the rest.
#[derive(Debug)]
pub struct ContinuedStream {
    /// Reads the unclaimed wants.
    stream: Stream,
    warming: Option<Arc<Warming>>,
    /// For each want: its number in the warming, if it was claimed there.
    claims: Vec<Option<usize>>,
    wants: Vec<Want>,
    files: SharedFiles,
    options: StreamOptions,
    position: Mutex<Position>,
}

/// [`Files`] that several streams share.
#[derive(Clone)]
struct SharedFiles(Arc<Files>);

impl std::fmt::Debug for SharedFiles {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SharedFiles")
    }
}

impl SharedFiles {
    fn boxed(&self) -> Box<Files> {
        let files = self.0.clone();
        Box::new(move |number| files(number))
    }
}

#[derive(Debug, Default)]
struct Position {
    /// The next want to hand out.
    next: usize,
    /// Reads the next want, if it was claimed from a warming that has ended.
    alone: Option<Stream>,
}

impl ContinuedStream {
    /// Claims the tensors that the warming has, and starts to read the rest.
    pub fn start(
        wants: Vec<Want>,
        files: Arc<Files>,
        warming: Option<Arc<Warming>>,
        inspect: Option<Box<Inspect>>,
        options: StreamOptions,
    ) -> Result<Self> {
        let files = SharedFiles(files);
        let claim = |want: &Want| warming.as_ref()?.claim_or_leave(want.file, want.offset, want.part());
        let claims = allocate::collected(wants.iter().map(claim), PLAN)?;
        let unclaimed = wants.iter().zip(&claims).filter(|(_, claim)| claim.is_none());
        let left = allocate::collected(unclaimed.map(|(want, _)| want.clone()), PLAN)?;
        let options = StreamOptions { readers: options.readers_of(&wants), ..options };
        let first = StreamOptions { memory_bytes: options.memory_bytes.min(FIRST_BYTES), ..options };
        let stream = Stream::start(&left, files.boxed(), inspect, first, None)?;
        Ok(Self { stream, warming, claims, wants, files, options, position: Mutex::default() })
    }

    fn position(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next want's number and bytes. Waits for them at most for `patience`.
    pub fn next(&self, patience: Duration) -> Result<Next<(usize, Landed)>> {
        self.stream.check_process()?;
        let mut position = self.position();
        let number = position.next;
        let Some(&claim) = self.claims.get(number) else { return Ok(Next::End) };
        let found = match (&position.alone, claim, &self.warming) {
            (Some(alone), ..) => alone.next(patience)?,
            (None, Some(claim), Some(warming)) => match warming.take(claim, patience) {
                Next::End => {
                    let want = std::slice::from_ref(&self.wants[number]);
                    let alone = Stream::start(want, self.files.boxed(), None, self.options, None)?;
                    position.alone.insert(alone).next(patience)?
                }
                found => found,
            },
            _ => self.stream.next(patience)?,
        };
        if matches!(found, Next::Ready(_)) {
            self.stream.double(self.options.memory_bytes);
            *position = Position { next: number + 1, alone: None };
        }
        Ok(found.map(|landed| (number, landed)))
    }

    /// Stops reading, and returns claimed tensors that were not taken to the warming.
    pub fn close(&self) {
        if self.stream.check_process().is_err() {
            return; // a thread of the parent may have held the lock at the fork
        }
        self.stream.close();
        let mut position = self.position();
        let left = std::mem::replace(&mut position.next, self.claims.len());
        position.alone = None;
        if let Some(warming) = &self.warming {
            self.claims[left..].iter().flatten().for_each(|&claim| warming.release(claim));
        }
    }
}
