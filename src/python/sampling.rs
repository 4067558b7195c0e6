//! Mixtures, the order of an epoch for `torch/sampler.py`, and the windows of a stream for the benchmarks that verify
//! them.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::sampling::mixture::{Exhausted, Mixture, MixtureProgress, SourceProgress, Start};
use crate::sampling::order::Order;
use crate::sampling::permutation::Permutation;
use crate::sampling::schedule::{Schedule, SourceSize};

/// Returns `count` entries of an epoch's order, at the places `start`, `start + step`, … The order repeats after its
/// end.
#[pyfunction]
pub fn permuted(
    py: Python<'_>,
    length: u64,
    seed: u64,
    epoch: u64,
    start: u64,
    step: u64,
    count: usize,
) -> PyResult<Vec<u64>> {
    let order = Permutation::new(length, seed, epoch)?;
    let step = step % length;
    let places = std::iter::successors(Some(start % length), |place| Some((place + step) % length));
    Ok(py.detach(|| places.take(count).map(|place| order.at(place)).collect()))
}

/// Returns the first windows of a stream over one corpus. With `order="random"` it returns the tokens where they begin.
#[pyfunction]
pub fn drawn(
    py: Python<'_>,
    corpus: (u64, u64),
    order: &str,
    mixing_radius_windows: u64,
    seed: u64,
    count: usize,
) -> PyResult<Vec<u64>> {
    let order = Order::from_word(order, mixing_radius_windows)?;
    let (windows, starts) = corpus;
    let schedule = Schedule::new(vec![SourceSize { windows, starts }], None, order, seed)?;
    let draws = py.detach(|| schedule.draws(0, count))?;
    Ok(draws.into_iter().map(|draw| draw.index).collect())
}

/// The state of a source in a saved state: its number, its epoch, and the number of windows drawn in that epoch.
type SourcePlace = (u32, u64, u64);

/// Weighted sources with their numbers of windows. `start` is a position, the passes before it, and a state for each
/// source.
#[pyclass(name = "Mixture", module = "pagestream._native", frozen)]
#[derive(Debug)]
pub struct PyMixture {
    mixture: Arc<Mixture>,
}

#[pymethods]
impl PyMixture {
    #[new]
    fn new(
        py: Python<'_>,
        weights: Vec<u64>,
        windows: Vec<u64>,
        exhausted: &str,
        start: Option<(u64, u64, Vec<SourcePlace>)>,
    ) -> PyResult<Self> {
        let exhausted = Exhausted::from_word(exhausted)?;
        let start = start.map(|(position, pass, sources)| Start {
            position,
            numbers: sources.iter().map(|(number, ..)| *number).collect(),
            progress: MixtureProgress {
                pass,
                sources: sources.iter().map(|&(_, epoch, taken)| SourceProgress { epoch, taken }).collect(),
            },
        });
        let mixture = py.detach(|| Mixture::new(&weights, &windows, exhausted, start))?;
        Ok(Self { mixture: Arc::new(mixture) })
    }

    /// Number of samples in a whole pass; None if sources repeat.
    #[getter]
    fn pass_length(&self) -> Option<u64> {
        self.mixture.pass_length()
    }

    /// Returns the position at the end of `passes` passes, counted from the beginning of the stream. None if sources
    /// repeat, or if the position exceeds 2^64.
    fn end_of_passes(&self, passes: u64) -> Option<u64> {
        self.mixture.end_of_passes(passes)
    }

    /// Returns the passes completed at a position, and a state for each source.
    fn progress(&self, position: u64) -> PyResult<(u64, Vec<SourcePlace>)> {
        let MixtureProgress { pass, sources } = self.mixture.progress(position)?;
        let numbers = &self.mixture.start.numbers;
        let place = |(number, source): (&u32, SourceProgress)| (*number, source.epoch, source.taken);
        Ok((pass, numbers.iter().zip(sources).map(place).collect()))
    }
}

impl PyMixture {
    pub(super) fn shared(&self) -> Arc<Mixture> {
        self.mixture.clone()
    }
}
