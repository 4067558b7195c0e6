//! Chooses the strategy of a stream from facts about the files, never from the name of a file system.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::allocate;
use crate::error::{Error, Result};
use crate::fetch::budget::default_memory_bytes;
use crate::fetch::crew::KeepGoing;
use crate::mapped_file::Opened;
use crate::words::words;

use super::plan::{PLAN, Want};
use super::sample::{drawn, is_cached};
use super::trial;

words! {
    /// How a stream gets its bytes.
    pub enum Strategy as "strategy" {
        /// Chosen from the facts.
        Auto = "auto",
        /// Views of the mapped files.
        Mapped = "mapped",
        /// Reads into the page cache, and returns views of its pages.
        Ahead = "ahead",
        /// Positioned reads into owned memory.
        Pread = "pread",
        /// Reads into owned memory, past the page cache.
        Direct = "direct",
    }
}

/// Number of pages to probe. If all of them are cached, at least 95 % of the bytes are, with a probability of 96 %.
const SAMPLED_PAGES: u64 = 64;

/// A decision, and the facts behind it.
#[derive(Debug, Clone)]
pub struct Choice {
    pub strategy: Strategy,
    pub reason: String,
}

/// Facts for a decision, apart from the files.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings {
    pub available_memory_bytes: u64,
    /// Number of this job's processes on this node. They share the page cache.
    pub local_processes: u64,
    /// Whether `warm` is reading the files into the page cache, or has read them.
    pub is_warmed: bool,
    /// Whether a trial of the mount is allowed. It needs threads and memory of its own.
    pub may_try: bool,
    /// Picks the probed pages. A probe may bring its page into the cache, so each decision probes different pages.
    pub seed: u64,
}

/// Chooses a strategy for the wants, unless the caller has named one.
pub fn choose(
    asked: Strategy,
    wants: &[Want],
    files: impl Fn(usize) -> Result<Arc<Opened>>,
    around: Surroundings,
    keep_going: &mut KeepGoing<'_>,
) -> Result<Choice> {
    choose_by(asked, wants, files, is_cached, around, keep_going)
}

/// Does the work of [`choose`]. `is_cached` tells whether the page of a byte is cached.
fn choose_by(
    asked: Strategy,
    wants: &[Want],
    files: impl Fn(usize) -> Result<Arc<Opened>>,
    is_cached: impl Fn(&Opened, u64, u64) -> bool,
    around: Surroundings,
    keep_going: &mut KeepGoing<'_>,
) -> Result<Choice> {
    let seed = around.seed;
    let decided = |strategy, reason: String| Ok(Choice { strategy, reason });
    if asked == Strategy::Ahead {
        for number in wants.iter().map(|want| want.file).collect::<BTreeSet<_>>() {
            if let Some(refusal) = refusal_of_cache(&*files(number)?) {
                return Err(Error::argument(format!("strategy=\"ahead\" needs the page cache: {refusal}")));
            }
        }
    }
    if asked != Strategy::Auto {
        return decided(asked, "as was asked for".into());
    }
    // Concatenates the bytes of all wants, so that a tensor is drawn in proportion to its size.
    let add = |end: &mut u64, want: &Want| {
        *end = end.saturating_add(want.len);
        Some(*end)
    };
    let ends = allocate::collected(wants.iter().scan(0, add), PLAN)?;
    let Some(&total) = ends.last().filter(|&&total| total > 0) else {
        return decided(Strategy::Mapped, "there is nothing to read".into());
    };
    for probe in 0..SAMPLED_PAGES {
        let byte = drawn(seed, probe, total);
        let index = ends.partition_point(|&end| end <= byte);
        let want = &wants[index];
        let offset = want.offset + byte - (ends[index] - want.len);
        let opened = files(want.file)?;
        if opened.region.is_some() && is_cached(&opened, offset, seed) {
            continue;
        }
        let path = opened.path().display();
        let cold = format!("byte {offset} of {path} is not in the page cache (sample {})", probe + 1);
        let refusal = refusal_of_cache(&opened);
        let Surroundings { available_memory_bytes, local_processes, .. } = around;
        let result_bytes = wants.iter().fold(0, |sum: u64, want| {
            sum.saturating_add(want.selection.as_ref().map_or(want.len, |part| part.result_bytes))
        });
        return match refusal {
            Some(refusal) => decided(Strategy::Pread, refusal),
            None if around.is_warmed => {
                decided(Strategy::Ahead, format!("{cold}, where warm() reads as well"))
            }
            None if local_processes > 1 => {
                let reason = format!("{cold}, and {local_processes} processes of this node share that");
                decided(Strategy::Ahead, reason)
            }
            None if result_bytes > available_memory_bytes / 2 => {
                let reason = format!(
                    "{cold}, and copies of {result_bytes} bytes would take more than half of the \
                     {available_memory_bytes} bytes of memory that are available"
                );
                decided(Strategy::Ahead, reason)
            }
            None => {
                let in_file = wants.iter().filter(|other| other.file == want.file);
                let in_file = allocate::collected(in_file, PLAN)?;
                let has_memory = default_memory_bytes() >= trial::MEMORY_BYTES;
                let is_worth_it = around.may_try && has_memory && result_bytes >= trial::LEAST_BYTES;
                let known =
                    is_worth_it.then(|| trial::of_mount(&opened, &in_file, seed, keep_going)).flatten();
                let strategy = match &known {
                    Some(found) if found.is_direct_better => Strategy::Direct,
                    _ => Strategy::Pread,
                };
                let untried = if is_worth_it { "; its mount could not be tried" } else { "" };
                let facts = known.map_or(untried.into(), |found| format!("; {}", found.facts));
                decided(strategy, format!("{cold}{facts}"))
            }
        };
    }
    decided(Strategy::Mapped, format!("all of {SAMPLED_PAGES} sampled pages are in the page cache"))
}

/// Returns why a file cannot be used through the page cache; `None` if it can.
fn refusal_of_cache(opened: &Opened) -> Option<String> {
    let path = opened.path().display();
    if opened.region.is_none() && opened.size() > 0 {
        Some(format!("{path} is not mapped"))
    } else if opened.may_read_from_cache() {
        None
    } else {
        Some(format!("reads of {path} bypass the page cache"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_file::RequestedMode;
    use crate::mapped_file::test_file;

    const LEN: u64 = 1 << 20;

    /// Returns the choice for a file without cached pages.
    fn chosen(opened: &Arc<Opened>, available_memory_bytes: u64, local_processes: u64) -> Choice {
        chosen_by(opened, |_| false, available_memory_bytes, local_processes)
    }

    fn chosen_by(
        opened: &Arc<Opened>,
        is_cached: impl Fn(u64) -> bool,
        available_memory_bytes: u64,
        local_processes: u64,
    ) -> Choice {
        let wants = [Want { file: 0, offset: 0, len: LEN, selection: None }];
        let around = Surroundings {
            available_memory_bytes,
            local_processes,
            is_warmed: false,
            may_try: false,
            seed: 5,
        };
        let files = |_| Ok(opened.clone());
        let is_cached = |_: &Opened, offset, _| is_cached(offset);
        choose_by(Strategy::Auto, &wants, files, is_cached, around, &mut || true).expect("a decision")
    }

    #[test]
    fn files_are_mapped_if_all_of_the_sample_is_cached() {
        let opened = test_file::opened(&vec![1; LEN as usize], RequestedMode::Auto);
        assert_eq!(chosen_by(&opened, |_| true, 2 * LEN, 1).strategy, Strategy::Mapped);
        let half = chosen_by(&opened, |offset| offset < LEN / 2, 2 * LEN, 1);
        assert_eq!(half.strategy, Strategy::Pread);
    }

    #[test]
    fn cold_files_are_read_unless_memory_is_short_or_shared() {
        let opened = test_file::opened(&vec![1; LEN as usize], RequestedMode::Auto);
        assert_eq!(chosen(&opened, 2 * LEN, 1).strategy, Strategy::Pread);
        let short = chosen(&opened, 2 * LEN - 2, 1);
        assert_eq!(short.strategy, Strategy::Ahead);
        assert!(short.reason.contains("copies of 1048576 bytes"), "{}", short.reason);
        let shared = chosen(&opened, 2 * LEN, 8);
        assert_eq!(shared.strategy, Strategy::Ahead);
        assert!(shared.reason.contains("8 processes"), "{}", shared.reason);
    }
}
