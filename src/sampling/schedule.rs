//! The stream of draws, epoch after epoch, from any position.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::key::{Draws, Key};
use super::mixture::{Exhausted, Mixture, StreamPlace, phase_at};
use super::order::{EpochOrder, Order};
use super::permutation::check_length;
use crate::allocate;
use crate::error::{Error, Result};

/// The child of the seed's key that chooses the first rows of batches. Children for sources are 32-bit numbers.
const ROTATIONS: u64 = u64::MAX;

/// The size of a source.
#[derive(Debug, Clone)]
pub struct SourceSize {
    /// Number of windows, which equals the draws of an epoch.
    pub windows: u64,
    /// Number of possible starts of a window. Only [`Order::Random`] uses it.
    pub starts: u64,
}

/// A draw: a window to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    pub source: usize,
    pub epoch: u64,
    /// Number of the window, or its first token for [`Order::Random`].
    pub index: u64,
}

/// A stream of draws: a pure function of its arguments. Its state only saves time.
#[derive(Debug)]
pub struct Schedule {
    sources: Vec<SourceSize>,
    pub order: Order,
    seed: u64,
    mixture: Arc<Mixture>,
    /// The last epoch of each source, for the next call, which usually continues there.
    epochs: Mutex<Vec<Option<Epoch>>>,
}

#[derive(Debug, Clone)]
struct Epoch {
    /// Number of passes since the start of the mixture.
    pass: u64,
    number: u64,
    /// First draw of the epoch, counted among the draws of its source in the pass.
    start: u64,
    order: EpochOrder,
}

impl Schedule {
    /// Creates a schedule for a mixture of these sources, or for a single source without a mixture.
    pub fn new(
        sources: Vec<SourceSize>,
        mixture: Option<Arc<Mixture>>,
        order: Order,
        seed: u64,
    ) -> Result<Self> {
        let windows: Vec<u64> = sources.iter().map(|source| source.windows).collect();
        let mixture = match mixture {
            Some(mixture) => mixture,
            None => Arc::new(Mixture::new(&[1], &windows, Exhausted::Drop, None)?),
        };
        if mixture.windows() != windows {
            let detail = format!("sources of {windows:?} windows for a mixture of {:?}", mixture.windows());
            return Err(Error::argument(detail));
        }
        for (number, source) in sources.iter().enumerate() {
            check_length(source.windows)?;
            if order == Order::Random {
                if source.starts == 0 {
                    return Err(Error::argument(format!("source {number} has no window to draw")));
                }
                check_length(source.starts)?;
            }
        }
        if order == (Order::Blocked { mixing_radius_windows: 0 }) {
            return Err(Error::argument("the mixing radius must be at least 1 window"));
        }
        let epochs = Mutex::new(vec![None; sources.len()]);
        Ok(Self { sources, order, seed, mixture, epochs })
    }

    /// Returns the draws for some rows of the global batch at `position`.
    ///
    /// Ranks take consecutive rows. The sources of a mixture take turns at nearly regular intervals, so the same rows
    /// would always get the same sources. A mixture's batch therefore begins with an arbitrary one of its draws, which
    /// depends only on seed and position, and wraps around.
    pub fn batch(&self, position: u64, global_rows: u64, rows: Range<u64>) -> Result<Vec<Draw>> {
        let count = (rows.end - rows.start) as usize;
        if self.sources.len() == 1 {
            return self.draws(position + rows.start, count);
        }
        let key = Key::of_seed(self.seed).derive(ROTATIONS);
        let first = Draws::new(key, global_rows).at(position);
        // Both are at most 2^32.
        let start = (first + rows.start) % global_rows;
        let before_end = count.min((global_rows - start) as usize);
        let mut out = allocate::vec(count, "the windows of a batch")?;
        self.extend(position + start, before_end, &mut out)?;
        self.extend(position, count - before_end, &mut out)?;
        Ok(out)
    }

    /// Returns `count` draws from `position` on. Positions continue from pass to pass.
    pub fn draws(&self, position: u64, count: usize) -> Result<Vec<Draw>> {
        let mut out = allocate::vec(count, "the windows of a batch")?;
        self.extend(position, count, &mut out)?;
        Ok(out)
    }

    /// Returns the end of the draws that are best read together with the draw at `position`. In the blocked order it is
    /// the end of the group, which consists of whole extents. In other orders it is the next position.
    pub fn block_end(&self, position: u64) -> Result<u64> {
        let Order::Blocked { mixing_radius_windows } = self.order else {
            return Ok(position.saturating_add(1));
        };
        if self.sources.len() > 1 {
            // The groups of different sources do not end together.
            return Ok(position.saturating_add(mixing_radius_windows));
        }
        let source = self.mixture.progress(position)?.sources[0];
        let EpochOrder::Blocked(groups) = self.epoch_order(0, source.epoch) else {
            return Ok(position.saturating_add(1));
        };
        Ok(position.saturating_add(groups.group_of(source.taken).1.end - source.taken))
    }

    /// Appends the draws from `position` on to `out`, which has capacity for them.
    fn extend(&self, mut position: u64, count: usize, out: &mut Vec<Draw>) -> Result<()> {
        let end = position.checked_add(count as u64).ok_or_else(|| {
            Error::argument(format!("{count} draws from position {position} on end after 2^64"))
        })?;
        let mut epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        while position < end {
            position = self.draws_of_phase(&mut epochs, position, end, out)?;
        }
        Ok(())
    }

    /// Draws until `end`, or until the phase of the mixture ends, and returns the next position.
    fn draws_of_phase(
        &self,
        epochs: &mut [Option<Epoch>],
        position: u64,
        end: u64,
        out: &mut Vec<Draw>,
    ) -> Result<u64> {
        let StreamPlace { pass, phases, inside, length } = self.mixture.place(position)?;
        let number = phase_at(phases, inside);
        let phase = &phases[number];
        let next = phases.get(number + 1).map(|next| next.start).or(length);
        let stop = next.map_or(end, |next| position.saturating_add(next - inside)).min(end);
        let first = inside - phase.start;
        for draw in first..first + (stop - position) {
            let (member, draw) = phase.turns.at(draw);
            let member = &phase.members[member];
            let source = member.source as usize;
            let drawn = member.taken.saturating_add(draw);
            let epoch = self.epoch(&mut epochs[source], source, pass, drawn);
            let index = epoch.order.at(drawn - epoch.start);
            out.push(Draw { source, epoch: epoch.number, index });
        }
        Ok(stop)
    }

    /// Returns the epoch of a source that contains its draw with number `drawn` in a pass.
    #[inline]
    fn epoch<'a>(
        &self,
        memory: &'a mut Option<Epoch>,
        source: usize,
        pass: u64,
        drawn: u64,
    ) -> &'a mut Epoch {
        let windows = self.sources[source].windows;
        let remembered = memory
            .as_ref()
            .is_some_and(|epoch| epoch.pass == pass && drawn.wrapping_sub(epoch.start) < windows);
        if !remembered {
            *memory = None;
        }
        memory.get_or_insert_with(|| {
            // If a pass has an end, no source has more than one epoch in it. Otherwise there is only one pass.
            let started = self.mixture.start.progress.sources[source].epoch;
            let number = started.saturating_add(pass).saturating_add(drawn / windows);
            let order = self.epoch_order(source, number);
            Epoch { pass, number, start: drawn - drawn % windows, order }
        })
    }

    /// Returns the order in which an epoch of a source visits its windows.
    pub fn epoch_order(&self, source: usize, epoch: u64) -> EpochOrder {
        let SourceSize { windows, starts } = self.sources[source];
        let number = u64::from(self.mixture.start.numbers[source]);
        let key = Key::of_seed(self.seed).derive(number).derive(epoch);
        EpochOrder::new(self.order, windows, starts, key)
    }
}
