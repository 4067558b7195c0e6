//! The stream of draws, epoch after epoch, from any position.

use std::sync::{Mutex, PoisonError};

use super::key::Key;
use super::mixture::{Mixture, Pass, Period};
use super::order::{EpochOrder, Order};
use super::permutation::check_length;
use crate::allocate;
use crate::error::{Error, Result};

/// The size of a source.
#[derive(Debug, Clone)]
pub struct SourceSize {
    /// Windows, which are the draws of an epoch.
    pub windows: u64,
    /// Possible starts of a window, for [`Order::Random`] alone.
    pub starts: u64,
}

/// A draw: one window to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    pub source: usize,
    pub epoch: u64,
    /// Number of the window, or its first token for [`Order::Random`].
    pub index: u64,
}

/// A stream of draws: a pure function of its arguments. Its memory only saves time.
#[derive(Debug)]
pub struct Schedule {
    sources: Vec<SourceSize>,
    pub order: Order,
    seed: u64,
    pass: Pass,
    memory: Mutex<Memory>,
}

/// Results of the last call for the next one, which usually continues there.
#[derive(Debug, Clone)]
struct Memory {
    /// Number of a phase of the pass; `period` is its period.
    phase: usize,
    period: Period,
    /// The last epoch of each source.
    epochs: Vec<Option<Epoch>>,
}

#[derive(Debug, Clone)]
struct Epoch {
    pass: u64,
    number: u64,
    /// First draw of the epoch, counted among the draws of its source in the pass.
    start: u64,
    order: EpochOrder,
}

impl Schedule {
    /// A schedule of a mixture, or of one source without.
    pub fn new(sources: Vec<SourceSize>, mixture: Option<&Mixture>, order: Order, seed: u64) -> Result<Self> {
        let single = Mixture::single();
        let mixture = mixture.unwrap_or(&single);
        if sources.len() != mixture.weights.len() {
            let (sources, weights) = (sources.len(), mixture.weights.len());
            return Err(Error::argument(format!("there are {sources} sources, but weights for {weights}")));
        }
        for (number, source) in sources.iter().enumerate() {
            if source.windows == 0 || (order == Order::Random && source.starts == 0) {
                return Err(Error::argument(format!("source {number} has no window to draw")));
            }
            check_length(source.windows)?;
            if order == Order::Random {
                check_length(source.starts)?;
            }
        }
        if order == (Order::Blocked { mixing_radius_windows: 0 }) {
            return Err(Error::argument("the mixing radius must be at least 1 window"));
        }
        let windows: Vec<u64> = sources.iter().map(|source| source.windows).collect();
        let pass = Pass::new(mixture, &windows)?;
        let period = Period::new(&pass.phases[0].members);
        let memory = Memory { phase: 0, period, epochs: vec![None; sources.len()] };
        Ok(Self { sources, order, seed, pass, memory: Mutex::new(memory) })
    }

    /// Draws of one pass, which for one source is an epoch; `None` if the stream has no end.
    pub fn len(&self) -> Option<u64> {
        self.pass.length
    }

    /// Returns the draws at `position` and after it. Positions go on from pass to pass.
    pub fn draws(&self, mut position: u64, count: usize) -> Result<Vec<Draw>> {
        let end = position.checked_add(count as u64).ok_or_else(|| {
            Error::argument(format!("{count} draws from position {position} on end after 2^64"))
        })?;
        let mut out = allocate::vec(count, "the windows of a batch")?;
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        while position < end {
            position = self.draws_of_phase(&mut memory, position, end, &mut out);
        }
        Ok(out)
    }

    /// The position up to which draws are best read together with the one at `position`: the end of its
    /// group in the blocked order, which is whole extents. Other orders have no such thing: that is the next.
    pub fn block_end(&self, position: u64) -> u64 {
        let Order::Blocked { mixing_radius_windows } = self.order else { return position.saturating_add(1) };
        match (&self.sources[..], self.len()) {
            ([_], Some(length)) => {
                let (pass, inside) = (position / length, position % length);
                let EpochOrder::Blocked(groups) = self.epoch_order(0, pass) else {
                    return position.saturating_add(1);
                };
                (position - inside).saturating_add(groups.group_of(inside).1.end)
            }
            // The groups of sources that are mixed do not end together.
            _ => position.saturating_add(mixing_radius_windows),
        }
    }

    /// Draws until `end`, or until the phase of the mixture ends, and returns the position after them.
    fn draws_of_phase(&self, memory: &mut Memory, position: u64, end: u64, out: &mut Vec<Draw>) -> u64 {
        let (pass, inside) = match self.pass.length {
            Some(length) => (position / length, position % length),
            None => (0, position),
        };
        // The first phase starts at 0.
        let number = self.pass.phases.partition_point(|phase| phase.start <= inside) - 1;
        let phase = &self.pass.phases[number];
        let next = self.pass.phases.get(number + 1).map(|next| next.start).or(self.pass.length);
        let phase_end = next.map_or(end, |next| position.saturating_add(next - inside));
        let stop = phase_end.min(end);

        if memory.phase != number {
            memory.period = Period::new(&phase.members);
            memory.phase = number;
        }
        let Memory { period, epochs, .. } = memory;
        let length = period.turns.len() as u64;
        let mut round = (inside - phase.start) / length;
        let mut place = ((inside - phase.start) % length) as usize;
        for _ in position..stop {
            let slot = period.turns[place];
            let member = &phase.members[usize::from(slot.member)];
            let drawn = member.taken + round * member.weight + u64::from(slot.rank);
            let epoch = self.epoch(&mut epochs[member.source], member.source, pass, drawn);
            let index = epoch.order.at(drawn - epoch.start);
            out.push(Draw { source: member.source, epoch: epoch.number, index });
            place += 1;
            if place == period.turns.len() {
                (place, round) = (0, round + 1);
            }
        }
        stop
    }

    /// The epoch that the draw with number `drawn` of a source in a pass belongs to.
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
            // Where a pass has an end no source has more than one epoch in it; else there is one pass.
            let number = pass + drawn / windows;
            let order = self.epoch_order(source, number);
            Epoch { pass, number, start: drawn - drawn % windows, order }
        })
    }

    /// The order in which an epoch of a source visits its windows.
    pub fn epoch_order(&self, source: usize, epoch: u64) -> EpochOrder {
        let SourceSize { windows, starts } = self.sources[source];
        let key = Key::of_seed(self.seed).derive(source as u64).derive(epoch);
        EpochOrder::new(self.order, windows, starts, key)
    }
}
