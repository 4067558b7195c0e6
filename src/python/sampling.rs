//! Orders for Python: the permutation under `torch/sampler.py`, and the schedule for tests.

use pyo3::prelude::*;

use crate::error::Error;
use crate::sampling::mixture::{Exhausted, Mixture};
use crate::sampling::order::Order;
use crate::sampling::permutation::Permutation;
use crate::sampling::schedule::{Schedule, SourceSize};

#[pyclass(name = "Permutation", module = "pagestream._native", frozen)]
#[derive(Debug)]
pub struct PyPermutation {
    permutation: Permutation,
}

#[pymethods]
impl PyPermutation {
    #[new]
    fn new(length: u64, seed: u64, epoch: u64) -> PyResult<Self> {
        Ok(Self { permutation: Permutation::new(length, seed, epoch)? })
    }

    fn at(&self, index: u64) -> PyResult<u64> {
        Ok(self.permutation.at(self.checked(index)?))
    }

    fn inverse(&self, value: u64) -> PyResult<u64> {
        Ok(self.permutation.inverse(self.checked(value)?))
    }

    /// The images of `start`, `start + step`, …, `count` of them.
    fn take(&self, py: Python<'_>, start: u64, step: u64, count: u64) -> PyResult<Vec<u64>> {
        let Some(last) = count.checked_sub(1) else { return Ok(Vec::new()) };
        let end = last.checked_mul(step).and_then(|steps| steps.checked_add(start));
        self.checked(end.unwrap_or(u64::MAX))?;
        let count = usize::try_from(count)?;
        Ok(py.detach(|| {
            let mut taken = Vec::new();
            taken
                .try_reserve_exact(count)
                .map_err(|_| Error::argument(format!("no memory for {count} indices")))?;
            taken.extend((0..count as u64).map(|number| self.permutation.at(start + number * step)));
            Ok::<_, Error>(taken)
        })?)
    }
}

impl PyPermutation {
    fn checked(&self, index: u64) -> Result<u64, Error> {
        let length = self.permutation.len();
        if index < length {
            return Ok(index);
        }
        Err(Error::Index { detail: format!("index {index} of a permutation of {length}") })
    }
}

#[pyclass(name = "Schedule", module = "pagestream._native", frozen)]
#[derive(Debug)]
pub struct PySchedule {
    schedule: Schedule,
}

#[pymethods]
impl PySchedule {
    /// Each source is (windows, starts). Without weights there is one source.
    #[new]
    fn new(
        py: Python<'_>,
        sources: Vec<(u64, u64)>,
        weights: Option<Vec<u64>>,
        exhausted: &str,
        order: &str,
        mixing_radius_windows: u64,
        seed: u64,
    ) -> PyResult<Self> {
        let exhausted = Exhausted::from_word(exhausted)?;
        let order = Order::from_word(order, mixing_radius_windows)?;
        let sources = sources.into_iter().map(|(windows, starts)| SourceSize { windows, starts }).collect();
        let mixture = weights.map(|weights| Mixture::new(&weights, exhausted)).transpose()?;
        Ok(Self { schedule: py.detach(|| Schedule::new(sources, mixture.as_ref(), order, seed))? })
    }

    /// Draws of one pass; None if there is no end.
    #[getter]
    fn length(&self) -> Option<u64> {
        self.schedule.len()
    }

    /// (source, epoch, index) of the draws at `position` and after it.
    fn draws(&self, py: Python<'_>, position: u64, count: usize) -> PyResult<Vec<(usize, u64, u64)>> {
        let mut draws = Vec::new();
        py.detach(|| self.schedule.draws(position, count, &mut draws))?;
        Ok(draws.into_iter().map(|draw| (draw.source, draw.epoch, draw.index)).collect())
    }
}
