//! Opens the shards of a checkpoint and their headers, in parallel.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::file::header_of;
use super::header::Header;
use super::locate::ShardPath;
use super::strictness::Strictness;
use crate::error::{Error, Result};
use crate::fetch::crew::{KeepGoing, PERIOD, Wait};
use crate::mapped_file::file_set::{DescriptorBudget, Kept};
use crate::mapped_file::{MappedFile, RequestedMode, descriptor_limit};
use crate::os::process::parallel::{FILES_PER_THREAD, in_parallel_while};

/// Maximum number of threads that wait for a server at the same time.
pub const WAITING_THREADS: usize = 64;
/// Number of descriptors that each of those threads may use.
const DESCRIPTORS_PER_THREAD: usize = 16;

/// Number of failed files after which opening stops, because an index may name tens of thousands.
pub const MAX_FAILED: usize = 100;

/// A shard whose header was read.
#[derive(Default)]
pub struct OpenedShard {
    /// `None` if the shard could not be opened.
    pub kept: Option<Kept>,
    pub header: Arc<Header>,
}

/// Opens all shards. `None` stands for a shard that was not tried because too many others had failed. An error that is
/// not the checkpoint's fault ends the opening at once, as does `keep_going` when it returns `false`.
pub fn open_shards(
    shards: &[ShardPath],
    mode: RequestedMode,
    strictness: Strictness,
    budget: &DescriptorBudget,
    keep_going: &mut KeepGoing<'_>,
) -> Result<Vec<Option<Result<OpenedShard>>>> {
    let open = |shard: &ShardPath| {
        let file = MappedFile::take_or_open(&shard.origin, mode)?;
        let header = header_of(&file, strictness)?;
        Ok(OpenedShard { kept: Some(Kept::new(file, budget)), header })
    };
    let failed = AtomicUsize::new(0);
    let attempt = |number: usize| {
        if failed.load(Ordering::Relaxed) >= MAX_FAILED {
            return Ok(None);
        }
        match open(&shards[number]) {
            Err(error) if !shards[number].is_to_blame(&error) => Err(error),
            opened => {
                failed.fetch_add(usize::from(opened.is_err()), Ordering::Relaxed);
                Ok(Some(opened))
            }
        }
    };
    let mut asked: Option<Instant> = None;
    let mut check = || {
        if asked.is_some_and(|asked| asked.elapsed() < PERIOD) {
            return Ok(());
        }
        asked = Some(Instant::now());
        if keep_going() { Ok(()) } else { Err(Error::argument("the opening was stopped")) }
    };
    let Some(rest) = shards.len().checked_sub(1) else { return Ok(Vec::new()) };
    check()?;
    // The first file shows whether storage is slow.
    let wait = Wait::begin();
    let mut opened = vec![attempt(0)?];
    let (is_slow, _) = wait.end(0);
    let threads = if is_slow {
        WAITING_THREADS.min(descriptor_limit() / DESCRIPTORS_PER_THREAD)
    } else {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        processors.min(rest.div_ceil(FILES_PER_THREAD))
    };
    opened.append(&mut in_parallel_while(rest, threads, check, |number| attempt(number + 1))?);
    Ok(opened)
}
