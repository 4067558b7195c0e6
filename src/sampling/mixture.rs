//! Weighted sources: the source of each draw, in closed form.
//!
//! Integer weights make a schedule with a period, their sum. Over one period the sources' draws are
//! unit jobs with deadlines on one processor, and the earliest deadline goes first. That keeps the
//! number of draws of each source within 1 of its share at every point (Tijdeman: The chairman assignment
//! problem, 1980; Baruah, Cohen, Plaxton, Varvel: Proportionate progress, 1996).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::error::{Error, Result};
use crate::words::words;

/// The largest sum of weights.
pub const MAX_PERIOD: u64 = 1 << 16;

/// The largest number of sources.
pub const MAX_SOURCES: usize = 1024;

words! {
    /// The policy for a source that runs out.
    pub enum Exhausted as "exhausted" {
        /// The source begins its next epoch; the mixture has no end.
        Repeat = "repeat",
        /// The mixture's pass ends with the draw that takes the last window of a source. All sources begin a
        /// new epoch in the next pass, also those that were not read to the end.
        Stop = "stop",
        /// The others go on, with the weights they have among themselves, until each window was drawn once.
        Drop = "drop",
    }
}

/// Weights of sources, and the policy for a source that runs out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixture {
    /// In lowest terms.
    pub weights: Vec<u64>,
    exhausted: Exhausted,
}

impl Mixture {
    /// One weight a source, each at least 1, [`MAX_PERIOD`] at most in all after division by their
    /// greatest common divisor.
    pub fn new(weights: &[u64], exhausted: Exhausted) -> Result<Self> {
        if weights.is_empty() || weights.len() > MAX_SOURCES {
            let sources = weights.len();
            return Err(Error::argument(format!("a mixture has 1 to {MAX_SOURCES} sources, not {sources}")));
        }
        if let Some(source) = weights.iter().position(|&weight| weight == 0) {
            return Err(Error::argument(format!(
                "the weight of source {source} is 0; it must be at least 1"
            )));
        }
        let weights = reduced(weights.to_vec());
        let period = weights.iter().try_fold(0_u64, |sum, &weight| sum.checked_add(weight));
        if period.is_none_or(|period| period > MAX_PERIOD) {
            return Err(Error::argument(format!(
                "the weights add up to more than {MAX_PERIOD}; give rounder ones"
            )));
        }
        Ok(Self { weights, exhausted })
    }

    /// The one source of a schedule without a mixture.
    pub(super) fn single() -> Self {
        Self { weights: vec![1], exhausted: Exhausted::Drop }
    }
}

fn reduced(mut weights: Vec<u64>) -> Vec<u64> {
    let divisor = weights.iter().fold(0, |divisor, &weight| greatest_common_divisor(divisor, weight));
    for weight in &mut weights {
        *weight /= divisor;
    }
    weights
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Draws of a mixture from one point on, while the same sources take part.
#[derive(Debug, Clone)]
pub(super) struct Phase {
    /// First draw of the phase, counted in the pass.
    pub start: u64,
    pub members: Vec<Member>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub source: usize,
    pub weight: u64,
    /// Windows drawn by earlier phases of the pass.
    pub taken: u64,
}

/// A pass through a mixture: its phases, and the number of draws, None if it has no end.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub phases: Vec<Phase>,
    pub length: Option<u64>,
}

impl Pass {
    /// `windows` has as many elements as there are weights, none of them 0.
    pub fn new(mixture: &Mixture, windows: &[u64]) -> Result<Self> {
        let member = |(source, &weight)| Member { source, weight, taken: 0 };
        let mut members: Vec<Member> = mixture.weights.iter().enumerate().map(member).collect();
        let mut phases = Vec::new();
        let mut start = 0_u64;
        loop {
            phases.push(Phase { start, members: members.clone() });
            if mixture.exhausted == Exhausted::Repeat {
                return Ok(Self { phases, length: None });
            }
            let period = Period::new(&members);
            let draws = period.until_one_runs_out(&members, windows).ok_or_else(too_long)?;
            for (number, member) in members.iter_mut().enumerate() {
                member.taken += period.drawn_before(number, draws);
            }
            start = start.checked_add(draws).ok_or_else(too_long)?;
            members.retain(|member| member.taken < windows[member.source]);
            if members.is_empty() || mixture.exhausted == Exhausted::Stop {
                return Ok(Self { phases, length: Some(start) });
            }
            let weights = reduced(members.iter().map(|member| member.weight).collect());
            for (member, weight) in members.iter_mut().zip(weights) {
                member.weight = weight;
            }
        }
    }
}

fn too_long() -> Error {
    Error::argument("a pass through this mixture has more than 2^64 draws; give less uneven weights")
}

/// One period of a phase's schedule.
#[derive(Debug, Clone)]
pub(super) struct Period {
    pub turns: Vec<Turn>,
    /// Turns of each member, as many as its weight.
    places: Vec<Vec<u32>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// Position in the phase's members.
    pub member: u16,
    /// Number of earlier turns of that member in the period.
    pub rank: u16,
}

impl Period {
    pub fn new(members: &[Member]) -> Self {
        let weights: Vec<u64> = members.iter().map(|member| member.weight).collect();
        let period: u64 = weights.iter().sum();
        let mut places: Vec<Vec<u32>> = weights.iter().map(|_| Vec::new()).collect();
        let mut turns = Vec::with_capacity(period as usize);
        // Job j of a weight w may run from floor(j P / w) on and must before ceil((j + 1) P / w).
        let mut waiting: BinaryHeap<_> = (0..weights.len()).map(|member| Reverse((0, member))).collect();
        let mut ready = BinaryHeap::new();
        for time in 0..period {
            while let Some(&Reverse((release, member))) = waiting.peek()
                && release <= time
            {
                waiting.pop();
                let done = places[member].len() as u64;
                ready.push(Reverse((((done + 1) * period).div_ceil(weights[member]), member)));
            }
            // Earliest deadline first meets all deadlines that can be met, so that each turn has a job.
            let Some(Reverse((_, member))) = ready.pop() else { break };
            let done = places[member].len() as u64;
            turns.push(Turn { member: member as u16, rank: done as u16 });
            places[member].push(time as u32);
            if done + 1 < weights[member] {
                waiting.push(Reverse(((done + 1) * period / weights[member], member)));
            }
        }
        Self { turns, places }
    }

    /// The number of draws until some member runs out of windows.
    fn until_one_runs_out(&self, members: &[Member], windows: &[u64]) -> Option<u64> {
        let period = self.turns.len() as u64;
        let last_draws = members.iter().zip(&self.places).map(|(member, places)| {
            let last = windows[member.source] - member.taken - 1;
            let place = u64::from(places[(last % member.weight) as usize]);
            (last / member.weight).checked_mul(period)?.checked_add(place + 1)
        });
        last_draws.flatten().min()
    }

    /// The number of times a member comes in the first `draws` draws.
    fn drawn_before(&self, member: usize, draws: u64) -> u64 {
        let period = self.turns.len() as u64;
        let places = &self.places[member];
        let inside = places.partition_point(|&place| u64::from(place) < draws % period);
        draws / period * places.len() as u64 + inside as u64
    }
}
