//! [`Background`]: work on threads of its own, which continues while its owner does something else.

use std::ops::Deref;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::os::process::fork;

use super::crew::{CLOSE_PATIENCE, Crew, Limits, Work};

/// Work that can be ended early.
pub trait BackgroundWork: Work + Send + 'static {
    /// Ends the work, with an error or without. A thread that is in a read ends afterwards.
    fn end(&self, error: Option<Error>);

    /// Drops all results. The work has ended, and no caller will ask for results.
    fn forget(&self) {}
}

/// Work and its threads. The work ends when this value is dropped.
///
/// A forked child has no such threads, and they may have held a lock. It therefore touches nothing.
#[derive(Debug)]
pub struct Background<W: BackgroundWork> {
    work: Arc<W>,
    crew: Arc<Crew>,
    process: u64,
}

impl<W: BackgroundWork> Background<W> {
    /// Starts the first threads of `work`.
    pub fn start(name: &'static str, work: W, limits: Limits) -> Result<Self> {
        let started =
            Self { work: Arc::new(work), crew: Arc::new(Crew::new(limits)), process: fork::generation() };
        started.crew.start(name, &started.work)?;
        Ok(started)
    }

    /// Returns whether this process has the threads.
    pub fn is_here(&self) -> bool {
        self.process == fork::generation()
    }

    /// Returns an error in a child of that process. `threads` is their name in the message.
    pub fn check_process(&self, threads: &str) -> Result<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(Error::argument(format!("{threads} belong to the process that this one was forked from")))
    }

    /// Waits until all threads have ended by themselves.
    #[cfg(test)]
    pub fn wait_for_threads(&self, patience: std::time::Duration) {
        self.crew.wait_for_end(patience);
    }

    /// Stops the work. A thread that is in a read ends afterwards.
    pub fn stop(&self) {
        if self.is_here() {
            self.work.end(None);
        }
    }

    /// Stops the threads and waits for them, but not forever: a thread may hang in a read from dead storage.
    pub fn close(&self) {
        if self.is_here() {
            self.work.end(None);
            self.crew.wait_for_end(CLOSE_PATIENCE);
            self.work.forget();
        }
    }
}

impl<W: BackgroundWork> Deref for Background<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.work
    }
}

impl<W: BackgroundWork> Drop for Background<W> {
    fn drop(&mut self) {
        if self.is_here() {
            self.work.end(None);
            // A thread that is in a read also owns the work, perhaps for long.
            self.work.forget();
        } else {
            std::mem::forget(self.work.clone());
        }
    }
}
