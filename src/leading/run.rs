//! [`Run`]: the place at which the user of one lead began. Several threads may each open a file and take one block of
//! its tensors. The lead of such a thread ends where the next block begins, because another lead reads from there on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::mapped_file::Identity;
use crate::os::process::fork;

/// The runs of this process. A child inherits its parent's runs and ignores them.
static RUNS: Mutex<Vec<Weak<Run>>> = Mutex::new(Vec::new());

/// The position of a run that has not begun, or has ended.
const NOWHERE: u64 = u64::MAX;

/// Tensors that a thread takes one after another.
#[derive(Debug)]
pub struct Run {
    file: Identity,
    process: u64,
    /// The order in the upper half, and the place of the first tensor in the lower half.
    first: AtomicU64,
}

impl Run {
    /// Makes a run in a file. It begins later.
    pub fn new(file: Identity) -> Arc<Self> {
        let run = Arc::new(Self { file, process: fork::generation(), first: AtomicU64::new(NOWHERE) });
        fork::with_lock(&RUNS, |runs| {
            runs.retain(|run| run.strong_count() > 0);
            runs.push(Arc::downgrade(&run));
        });
        run
    }

    /// Notes that the run begins at a place.
    pub fn begin(&self, order: usize, place: usize) {
        self.first.store(position(order, place), Ordering::Relaxed);
    }

    /// Notes that the run has ended, or that nothing is read ahead of it.
    pub fn end(&self) {
        self.first.store(NOWHERE, Ordering::Relaxed);
    }

    /// Returns the first place after `place` at which another run of the file has begun in the same order.
    pub fn end_behind(&self, order: usize, place: usize) -> Option<usize> {
        let (here, end) = (position(order, place), position(order + 1, 0));
        let is_of_file = |run: &Arc<Self>| run.file == self.file && run.process == fork::generation();
        // The clones are dropped after the lock.
        let others: Vec<_> = fork::with_lock(&RUNS, |runs| runs.iter().filter_map(Weak::upgrade).collect());
        let firsts = others.iter().filter(|run| is_of_file(run)).map(|run| run.first.load(Ordering::Relaxed));
        let next = firsts.filter(|&first| here < first && first < end).min();
        next.map(|first| (first & u64::from(u32::MAX)) as usize)
    }
}

fn position(order: usize, place: usize) -> u64 {
    (order as u64) << 32 | place as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_file::identity_at;

    #[test]
    fn a_run_ends_where_the_next_one_of_the_file_begins() {
        let files = [(); 2].map(|()| tempfile::NamedTempFile::new().expect("a file"));
        let [file, other] = files.each_ref().map(|file| identity_at(file.path()).expect("it is there"));
        let [first, second, third] = [(); 3].map(|()| Run::new(file));
        let elsewhere = Run::new(other);
        assert_eq!(first.end_behind(0, 0), None, "nobody has begun");
        first.begin(0, 0);
        second.begin(0, 32);
        third.begin(1, 5);
        elsewhere.begin(0, 3);
        assert_eq!(first.end_behind(0, 7), Some(32));
        assert_eq!(first.end_behind(0, 32), None, "it has come there");
        assert_eq!(second.end_behind(0, 33), None);
        assert_eq!(first.end_behind(1, 0), Some(5), "in another order");
        second.end();
        assert_eq!(first.end_behind(0, 7), None);
        third.begin(0, 9);
        drop(third);
        assert_eq!(first.end_behind(0, 7), None, "it is gone");
    }
}
