//! The order of an epoch, for `torch/sampler.py`, and the windows of a stream, for the benchmarks that prove them.

use pyo3::prelude::*;

use crate::sampling::order::Order;
use crate::sampling::permutation::Permutation;
use crate::sampling::schedule::{Schedule, SourceSize};

/// Returns what stands at the places `start`, `start + step`, … of the order of an epoch, `count` of them. After its
/// end the order begins again.
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

/// Returns the first windows of a stream over one corpus; with `order="random"` the tokens at which they begin.
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
