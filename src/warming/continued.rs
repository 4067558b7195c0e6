//! [`ContinuedStream`]: a stream that goes on where a [`Warming`] is.

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

/// The tensors of a plan, in order: those that a lead has in memory or is reading, and others, which a stream reads.
#[derive(Debug)]
pub struct ContinuedStream {
    /// Reads what is not claimed.
    stream: Stream,
    lead: Option<Arc<Warming>>,
    /// For each want its number in the lead, if it comes from there.
    claims: Vec<Option<usize>>,
    wants: Vec<Want>,
    files: SharedFiles,
    options: StreamOptions,
    position: Mutex<Position>,
}

/// [`Files`] of several streams.
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
    /// The want that comes next.
    next: usize,
    /// Reads it, if it was claimed from a lead that has ended.
    alone: Option<Stream>,
}

impl ContinuedStream {
    /// Claims what the lead has, and starts to read the rest.
    pub fn start(
        wants: Vec<Want>,
        files: Arc<Files>,
        lead: Option<Arc<Warming>>,
        inspect: Option<Box<Inspect>>,
        options: StreamOptions,
    ) -> Result<Self> {
        let files = SharedFiles(files);
        let claim = |want: &Want| lead.as_ref()?.claim_or_leave(want.file, want.offset, want.part());
        let claims = allocate::collected(wants.iter().map(claim), PLAN)?;
        let unclaimed = wants.iter().zip(&claims).filter(|(_, claim)| claim.is_none());
        let left = allocate::collected(unclaimed.map(|(want, _)| want.clone()), PLAN)?;
        let options = StreamOptions { readers: options.readers_of(&wants), ..options };
        let first = StreamOptions { memory_bytes: options.memory_bytes.min(FIRST_BYTES), ..options };
        let stream = Stream::start(&left, files.boxed(), inspect, first, None)?;
        Ok(Self { stream, lead, claims, wants, files, options, position: Mutex::default() })
    }

    fn position(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the number of the next want and its bytes, waiting for it for at most `patience`.
    pub fn next(&self, patience: Duration) -> Result<Next<(usize, Landed)>> {
        self.stream.check_process()?;
        let mut position = self.position();
        let number = position.next;
        let Some(&claim) = self.claims.get(number) else { return Ok(Next::End) };
        let found = match (&position.alone, claim, &self.lead) {
            (Some(alone), ..) => alone.next(patience)?,
            (None, Some(claim), Some(lead)) => match lead.take(claim, patience) {
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

    /// Stops reading, and gives what was claimed and not taken back to the lead.
    pub fn close(&self) {
        if self.stream.check_process().is_err() {
            return; // the lock may be one that a thread of the parent held
        }
        self.stream.close();
        let mut position = self.position();
        let left = std::mem::replace(&mut position.next, self.claims.len());
        position.alone = None;
        if let Some(lead) = &self.lead {
            self.claims[left..].iter().flatten().for_each(|&claim| lead.release(claim));
        }
    }
}
