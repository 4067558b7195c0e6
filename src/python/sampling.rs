//! The order of an epoch, for `torch/sampler.py`.

use pyo3::prelude::*;

use crate::sampling::permutation::Permutation;

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
