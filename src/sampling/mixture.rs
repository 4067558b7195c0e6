//! Streams of weighted sources: the source of each draw in closed form, and policies for an exhausted source.
//!
//! ```text
//! stream ── start ──> rest of the pass under way ──> pass ──> pass ── ...
//!                       └── phases: the same sources take part, by `turns`; each ends where a source runs out
//! ```
//!
//! A stream usually starts at position 0, with all sources unread. A stream whose weights change in mid-run starts
//! again at that position, and each source continues where the earlier weights left it.

use crate::error::{Error, Result};
use crate::sampling::turns::Turns;
use crate::words::words;

/// Maximum sum of weights.
pub const MAX_WEIGHT_SUM: u64 = 1 << 32;

/// Maximum number of sources.
pub const MAX_SOURCES: usize = 1024;

/// Version of the turns, for saved states. Any change to the source of a draw increments it.
pub const MIXTURE_VERSION: u32 = 2;

/// Limit on the positions and epochs at which a stream starts: the sum of two such numbers fits in 64 bits.
const MAX_START: u64 = 1 << 63;

words! {
    /// The policy for an exhausted source.
    pub enum Exhausted as "exhausted" {
        /// The source begins its next epoch; the mixture has no end.
        Repeat = "repeat",
        /// The mixture's pass ends with the draw of the last window of any source. In the next pass all sources begin a
        /// new epoch, even if they were not read to the end.
        Stop = "stop",
        /// The other sources continue by their weights, until each window was drawn once.
        Drop = "drop",
    }
}

/// How far a stream has read a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceProgress {
    pub epoch: u64,
    /// Number of windows of the epoch that were drawn.
    pub taken: u64,
}

/// How far a stream has advanced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixtureProgress {
    /// Number of completed passes.
    pub pass: u64,
    pub sources: Vec<SourceProgress>,
}

/// The state of a stream at which a mixture begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Number of earlier samples of the stream.
    pub position: u64,
    pub progress: MixtureProgress,
    /// A number for the keys of each source. A source keeps its number, and therefore its order, when a mixture gains
    /// or loses sources. For example, sources 0 and 2 of three keep the numbers 0 and 2 when source 1 is removed.
    pub numbers: Vec<u32>,
}

impl Start {
    /// Returns the beginning of a stream, with all sources unread.
    pub fn at_zero(sources: usize) -> Self {
        let unread = SourceProgress { epoch: 0, taken: 0 };
        let progress = MixtureProgress { pass: 0, sources: vec![unread; sources] };
        Self { position: 0, progress, numbers: (0..sources as u32).collect() }
    }

    fn check(&self, windows: &[u64]) -> Result<()> {
        let MixtureProgress { pass, sources } = &self.progress;
        if sources.len() != windows.len() || self.numbers.len() != windows.len() {
            let detail = format!("a start of {} sources for a mixture of {}", sources.len(), windows.len());
            return Err(Error::argument(detail));
        }
        let mut numbers = self.numbers.clone();
        numbers.sort_unstable();
        if let Some([twice, ..]) = numbers.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::argument(format!("two sources have the number {twice}")));
        }
        if self.position >= MAX_START || *pass >= MAX_START {
            let detail =
                format!("the start is at sample {} in pass {pass}; both must be below 2^63", self.position);
            return Err(Error::argument(detail));
        }
        for (number, (source, &windows)) in sources.iter().zip(windows).enumerate() {
            if source.taken > windows || source.epoch >= MAX_START {
                return Err(Error::argument(format!(
                    "source {number} starts at window {} of epoch {}; it has {windows} windows and epochs below 2^63",
                    source.taken, source.epoch
                )));
            }
        }
        Ok(())
    }
}

/// A stream of weighted sources: a pure function of weights, sizes and start.
#[derive(Debug, Clone)]
pub struct Mixture {
    windows: Vec<u64>,
    pub start: Start,
    /// The rest of the pass at which the stream starts, then a full pass, if they differ.
    passes: Vec<Pass>,
}

/// A position of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamPlace<'a> {
    /// Number of passes since the start.
    pub pass: u64,
    /// The phases of that pass.
    pub phases: &'a [Phase],
    /// Number of earlier draws in the pass.
    pub inside: u64,
    pub length: Option<u64>,
}

impl Mixture {
    /// Creates a mixture. Each source has a weight of at least 1, with a sum of at most [`MAX_WEIGHT_SUM`], and at
    /// least 1 window.
    pub fn new(weights: &[u64], windows: &[u64], exhausted: Exhausted, start: Option<Start>) -> Result<Self> {
        if weights.is_empty() || weights.len() > MAX_SOURCES {
            let sources = weights.len();
            return Err(Error::argument(format!("a mixture has 1 to {MAX_SOURCES} sources, not {sources}")));
        }
        if windows.len() != weights.len() {
            let (sources, weights) = (windows.len(), weights.len());
            return Err(Error::argument(format!("there are {sources} sources, but weights for {weights}")));
        }
        if let Some(source) = weights.iter().position(|&weight| weight == 0) {
            return Err(Error::argument(format!(
                "the weight of source {source} is 0; it must be at least 1"
            )));
        }
        if let Some(source) = windows.iter().position(|&windows| windows == 0) {
            return Err(Error::argument(format!("source {source} has no window to draw")));
        }
        let sum = weights.iter().try_fold(0_u64, |sum, &weight| sum.checked_add(weight));
        if sum.is_none_or(|sum| sum > MAX_WEIGHT_SUM) {
            return Err(Error::argument(format!(
                "the weights add up to more than {MAX_WEIGHT_SUM}; give rounder ones"
            )));
        }
        let start = start.unwrap_or_else(|| Start::at_zero(weights.len()));
        start.check(windows)?;
        let taken: Vec<u64> = start.progress.sources.iter().map(|source| source.taken).collect();
        let mut passes = Vec::new();
        if taken.iter().any(|taken| *taken > 0) {
            passes.push(Pass::new(weights, windows, &taken, exhausted)?);
        }
        if exhausted != Exhausted::Repeat || passes.is_empty() {
            passes.push(Pass::new(weights, windows, &vec![0; windows.len()], exhausted)?);
        }
        Ok(Self { windows: windows.to_vec(), start, passes })
    }

    /// Returns the number of windows of each source.
    pub fn windows(&self) -> &[u64] {
        &self.windows
    }

    /// Returns the number of draws in a whole pass, which for one source is an epoch. `None` if the stream has no end.
    pub fn pass_length(&self) -> Option<u64> {
        self.passes.last()?.length
    }

    /// Returns the position at the end of `passes` passes, counted from the beginning of the stream and not from the
    /// start. `None` if the stream has no passes, or if they end after 2^64 samples.
    pub fn end_of_passes(&self, passes: u64) -> Option<u64> {
        let length = self.pass_length()?;
        let Start { position, progress, .. } = &self.start;
        let left = passes.saturating_sub(progress.pass);
        if left == 0 {
            return Some(*position);
        }
        let first = self.passes.first()?.length?;
        position.checked_add(first)?.checked_add(length.checked_mul(left - 1)?)
    }

    /// Returns how far the stream has advanced at a position.
    pub fn progress(&self, position: u64) -> Result<MixtureProgress> {
        let StreamPlace { pass, phases, inside, .. } = self.place(position)?;
        let sources = &self.start.progress.sources;
        // The other sources are exhausted.
        let mut taken = self.windows.clone();
        let Phase { start, members, turns } = &phases[phase_at(phases, inside)];
        for (member, count) in members.iter().zip(turns.counts(inside - start)) {
            taken[member.source as usize] = member.taken.saturating_add(count);
        }
        let is_endless = self.pass_length().is_none();
        let progress = |((source, taken), windows): ((&SourceProgress, u64), &u64)| {
            let epochs = if is_endless { taken / windows } else { 0 };
            let epoch = source.epoch.saturating_add(pass).saturating_add(epochs);
            SourceProgress { epoch, taken: taken - epochs * windows }
        };
        let sources = sources.iter().zip(taken).zip(&self.windows).map(progress).collect();
        Ok(MixtureProgress { pass: self.start.progress.pass.saturating_add(pass), sources })
    }

    pub(super) fn place(&self, position: u64) -> Result<StreamPlace<'_>> {
        let since = position.checked_sub(self.start.position).ok_or_else(|| {
            let start = self.start.position;
            Error::argument(format!("sample {position} lies before the start of the mixture, sample {start}"))
        })?;
        let [first, .., later] = &self.passes[..] else {
            let pass = &self.passes[0];
            return Ok(pass.place(0, since));
        };
        Ok(match first.length {
            Some(length) if since >= length => later.place(1, since - length),
            _ => first.place(0, since),
        })
    }
}

/// Consecutive draws of a pass with the same sources.
#[derive(Debug, Clone)]
pub(super) struct Phase {
    /// First draw of the phase, counted within the pass.
    pub start: u64,
    pub members: Vec<Member>,
    pub turns: Turns,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub source: u32,
    /// Number of windows drawn before the phase. If the mixture repeats, this counts all epochs since the start.
    pub taken: u64,
}

/// Returns the index of the phase that contains a draw of the pass. The first phase starts at 0.
pub(super) fn phase_at(phases: &[Phase], draw: u64) -> usize {
    phases.partition_point(|phase| phase.start <= draw) - 1
}

/// A pass through a mixture, or the rest of one: its phases and the number of draws, or `None` if it has no end.
#[derive(Debug, Clone)]
struct Pass {
    phases: Vec<Phase>,
    length: Option<u64>,
}

impl Pass {
    fn new(weights: &[u64], windows: &[u64], taken: &[u64], exhausted: Exhausted) -> Result<Self> {
        let mut members: Vec<Member> =
            (0..).zip(taken).map(|(source, &taken)| Member { source, taken }).collect();
        let left = |member: &Member| windows[member.source as usize].saturating_sub(member.taken);
        let mut phases = Vec::new();
        let mut start = 0_u64;
        loop {
            if exhausted != Exhausted::Repeat {
                members.retain(|member| left(member) > 0);
                let is_over = exhausted == Exhausted::Stop && members.len() < windows.len();
                if members.is_empty() || is_over {
                    return Ok(Self { phases, length: Some(start) });
                }
            }
            let weights: Vec<u64> = members.iter().map(|member| weights[member.source as usize]).collect();
            let turns = Turns::new(&weights);
            phases.push(Phase { start, members: members.clone(), turns: turns.clone() });
            if exhausted == Exhausted::Repeat {
                return Ok(Self { phases, length: None });
            }
            let draws = turns.until_one_is_done(&members.iter().map(left).collect::<Vec<_>>());
            let draws = draws.ok_or_else(too_long)?;
            for (member, count) in members.iter_mut().zip(turns.counts(draws)) {
                member.taken += count;
            }
            start = start.checked_add(draws).ok_or_else(too_long)?;
        }
    }

    /// Returns the place after `draws` of this pass and of equal passes after it. `before` passes precede it.
    fn place(&self, before: u64, draws: u64) -> StreamPlace<'_> {
        let (passes, inside) = self.length.map_or((0, draws), |length| (draws / length, draws % length));
        StreamPlace { pass: before + passes, phases: &self.phases, inside, length: self.length }
    }
}

fn too_long() -> Error {
    Error::argument("a pass through this mixture has more than 2^64 draws; give less uneven weights")
}
