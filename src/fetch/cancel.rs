//! Stopping long work: the calling thread is asked at one period.

use std::time::{Duration, Instant};

/// Time between two questions. Short enough for Ctrl-C, long enough to cost nothing.
pub const PERIOD: Duration = Duration::from_millis(50);

/// Called now and then by the thread that called into this crate; `false` stops.
pub type KeepGoing<'a> = dyn FnMut() -> bool + 'a;

/// Asks a [`KeepGoing`] once a [`PERIOD`].
pub struct Cancel<'a, 'k> {
    keep_going: &'a mut KeepGoing<'k>,
    asked: Instant,
}

impl std::fmt::Debug for Cancel<'_, '_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cancel").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl<'a, 'k> Cancel<'a, 'k> {
    pub fn new(keep_going: &'a mut KeepGoing<'k>) -> Self {
        Self { keep_going, asked: Instant::now() }
    }

    /// Whether the caller wants to stop. Asks it if the last time was a period ago.
    pub fn is_wanted(&mut self) -> bool {
        if self.asked.elapsed() < PERIOD {
            return false;
        }
        self.asked = Instant::now();
        !(self.keep_going)()
    }
}
