//! By which means a stream gets its bytes, decided from facts about the files and never by the name of a file
//! system.

use std::sync::Arc;

use crate::error::Result;
use crate::mapped_file::{Opened, page_cache};
use crate::mix::{GAMMA, mix};
use crate::words::words;

use super::plan::Want;

words! {
    /// How a stream gets its bytes.
    pub enum Strategy as "strategy" {
        /// The one that the facts favour.
        Auto = "auto",
        /// Views of the mapped files.
        Mapped = "mapped",
        /// Positioned reads into owned memory.
        Pread = "pread",
    }
}

/// Pages that are probed. If all are cached, at least 95 % of the bytes are, with a probability of 96 %.
const SAMPLED_PAGES: u64 = 64;

/// A decision, and the facts that led to it.
#[derive(Debug, Clone)]
pub struct Choice {
    pub strategy: Strategy,
    pub reason: String,
}

/// Draws a number below `bound`, which is not 0.
pub(super) fn drawn(seed: u64, number: u64, bound: u64) -> u64 {
    mix(seed.wrapping_add(number.wrapping_mul(GAMMA))) % bound
}

/// Returns whether the page of a byte is cached. One that cannot be probed (NaN) counts as missing.
pub(super) fn is_cached(opened: &Opened, offset: u64, seed: u64) -> bool {
    page_cache::residency(opened, offset, 1, seed).is_ok_and(|found| found.fraction >= 1.0)
}

/// Decides between views of the mapped files and reads, unless the caller has. `seed` picks the pages that are
/// probed: a probe may bring its page into the cache, so each decision needs pages of its own.
pub fn choose(
    asked: Strategy,
    wants: &[Want],
    files: impl Fn(usize) -> Result<Arc<Opened>>,
    seed: u64,
) -> Result<Choice> {
    let decided = |strategy, reason: String| Ok(Choice { strategy, reason });
    if asked != Strategy::Auto {
        return decided(asked, "as was asked for".into());
    }
    // The bytes of the wants, one after another: a page is drawn with its tensor's weight.
    let add = |end: &mut u64, want: &Want| {
        *end = end.saturating_add(want.len);
        Some(*end)
    };
    let ends: Vec<u64> = wants.iter().scan(0, add).collect();
    let Some(&total) = ends.last().filter(|&&total| total > 0) else {
        return decided(Strategy::Mapped, "there is nothing to read".into());
    };
    for probe in 0..SAMPLED_PAGES {
        let byte = drawn(seed, probe, total);
        let index = ends.partition_point(|&end| end <= byte);
        let want = &wants[index];
        let offset = want.offset + byte - (ends[index] - want.len);
        let opened = files(want.file)?;
        if opened.region.is_none() {
            let reason = format!("{} is not mapped", opened.path.display());
            return decided(Strategy::Pread, reason);
        }
        if !is_cached(&opened, offset, seed) {
            let path = opened.path.display();
            let reason = format!("byte {offset} of {path} is not in the page cache (sample {})", probe + 1);
            return decided(Strategy::Pread, reason);
        }
    }
    decided(Strategy::Mapped, format!("all of {SAMPLED_PAGES} sampled pages are in the page cache"))
}
