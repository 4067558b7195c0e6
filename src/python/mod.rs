//! The binding, `pagestream._native`. It is private: users import `pagestream`, which contains the documentation and
//! the policy (defaults, environment). The binding checks arguments, detaches, converts errors and buffers, raises
//! audit events, and reports damaged files; nothing here is worth a unit test. Unsafe island 3 is `export.rs` and
//! `writable.rs`.

#![allow(missing_debug_implementations)] // Python prints these objects.
#![allow(clippy::needless_pass_by_value)] // Arguments from Python come by value.

mod checkpoint;
mod checksums;
mod damage;
mod error;
mod export;
mod files;
mod idle;
mod lead;
mod loader;
mod names;
mod next_file;
mod sampling;
mod staged_stream;
mod staging;
mod stored_tensor;
mod stream;
mod tokens;
mod waiting;
mod warming;
mod warming_shard;
mod weights;
mod writable;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::{
        checkpoint::PyCheckpoint,
        checksums::PyChecksumRun,
        export::PyExporter,
        files::PyMappedFile,
        loader::{PyPipelineBatch, PyTokenPipeline},
        sampling::{PyMixture, drawn, permuted},
        staged_stream::PyStagedStream,
        staging::{PyStagingBuffer, populate},
        stored_tensor::PyStoredTensor,
        stream::PyTensorStream,
        tokens::{PyTokenCorpus, natural_sorted},
        warming::PyWarming,
        weights::{PyTensorFacts, PyWeightFile, parse_weights},
    };

    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    use crate::os::fault::FaultGuard;

    /// Sets the mappings that the SIGBUS handler guards, for the rest of the process.
    #[pyfunction]
    fn set_fault_guard(guard: &str) -> PyResult<()> {
        crate::os::fault::set_fault_guard(FaultGuard::from_word(guard)?);
        Ok(())
    }

    /// Sets whether this process shares open files with processes of the same user.
    #[pyfunction]
    fn set_share(is_on: bool) {
        crate::mapped_file::offer::share(is_on);
    }

    #[pyfunction]
    fn is_sharing() -> bool {
        crate::mapped_file::offer::is_sharing()
    }

    /// Puts the SIGBUS handler in front of handlers that were installed later. Returns whether there is a handler.
    #[pyfunction]
    fn guard() -> bool {
        crate::os::fault::reinstall()
    }

    #[pyfunction]
    fn available_memory_bytes() -> u64 {
        crate::os::process::limits::available_memory_bytes()
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::os::process::atfork::register();
        super::weights::add_constants(module)?;
        super::damage::watch();
        super::tokens::add_constants(module)?;
        // Words that users type, for Python's own checks.
        for (name, words) in [
            ("ADVICE", crate::os::memory::advise::Advice::WORDS),
            ("HUGE_PAGES", crate::os::memory::anonymous::HugePages::WORDS),
            ("PROTECTIONS", crate::os::memory::anonymous::Protection::WORDS),
            ("BATCH_DTYPES", crate::widen::Element::WORDS),
            ("DROP_BEHIND", crate::mapped_file::DropBehind::WORDS),
            ("EXHAUSTED", crate::sampling::mixture::Exhausted::WORDS),
            ("FAULT_GUARDS", FaultGuard::WORDS),
            ("FORMATS", crate::tokens::format::layout::Format::WORDS),
            ("MODES", crate::mapped_file::RequestedMode::WORDS),
            ("ORDERS", crate::sampling::order::OrderKind::WORDS),
            ("STRATEGIES", crate::streaming::strategy::Strategy::WORDS),
            ("TARGETS", crate::tokens::windows::Target::WORDS),
        ] {
            module.add(name, PyTuple::new(module.py(), words)?)?;
        }
        module.add("debug_build", cfg!(debug_assertions))?;
        module.add("MAX_THREADS", crate::fetch::crew::MAX_GIVEN_THREADS)?;
        module.add("MAX_MIXTURE_SOURCES", crate::sampling::mixture::MAX_SOURCES)?;
        module.add("MAX_MIXTURE_WEIGHT_SUM", crate::sampling::mixture::MAX_WEIGHT_SUM)?;
        module.add("MIXTURE_VERSION", crate::sampling::mixture::MIXTURE_VERSION)?;
        module.add("ORDER_VERSION", crate::sampling::ORDER_VERSION)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
