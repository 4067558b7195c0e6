//! `StagingBuffer`. Its Python subclass has the documentation.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::export::{Access, Export, Exportable, PyExporter, Requester};
use crate::error::{Error, Result};
use crate::os::errno::{Code, system};
use crate::os::memory::anonymous::{Anonymous, HugePages, Protection, huge_page_bytes};
use crate::os::process::fork::{self, Section};

#[pyclass(name = "StagingBuffer", module = "pagestream._native", extends = PyExporter, subclass, weakref, frozen)]
#[derive(Debug)]
pub struct PyStagingBuffer {
    staging: Arc<Staging>,
}

#[derive(Debug)]
struct Staging {
    block: Mutex<Anonymous>,
    /// Number of live [`StagingExport`]s. It increases under the lock, so that no export appears during a resize.
    exports: AtomicUsize,
    /// Whether an array was created that keeps the buffer and not its export. Its death cannot be observed.
    is_kept_whole: AtomicBool,
}

/// The lock, held in a section: otherwise a fork would leave it locked in the child.
struct LockedBlock<'a> {
    // Dropped in this order.
    block: MutexGuard<'a, Anonymous>,
    _section: Section,
}

/// An export of a buffer, which keeps its memory in place.
struct StagingExport {
    staging: Arc<Staging>,
    address: usize,
    len: usize,
    access: Access,
}

impl Exportable for StagingExport {
    fn export(&self, _py: Python<'_>, _requester: Requester) -> PyResult<Export> {
        let address = std::ptr::with_exposed_provenance(self.address);
        Ok(Export { address, len: self.len, access: self.access, holder: None })
    }

    fn is_last(&self) -> bool {
        Arc::strong_count(&self.staging) == 1
    }
}

impl Drop for StagingExport {
    fn drop(&mut self) {
        self.staging.exports.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Exportable for Arc<Staging> {
    fn export(&self, py: Python<'_>, requester: Requester) -> PyResult<Export> {
        let export = {
            let LockedBlock { block, .. } = &self.lock();
            let access = match block.protection() {
                Protection::Read => Access::ReadOnly,
                Protection::ReadWrite => Access::Writable,
            };
            self.exports.fetch_add(1, Ordering::AcqRel);
            let address = block.as_ptr().expose_provenance();
            StagingExport { staging: self.clone(), address, len: block.len(), access }
        };
        if requester == Requester::KeepsAskedObject {
            self.is_kept_whole.store(true, Ordering::Release);
        }
        let (address, len, access) = (export.address, export.len, export.access);
        let holder = Some(Py::new(py, PyExporter::new(export))?);
        Ok(Export { address: std::ptr::with_exposed_provenance(address), len, access, holder })
    }

    fn is_last(&self) -> bool {
        Arc::strong_count(self) == 1
    }
}

impl Staging {
    fn lock(&self) -> LockedBlock<'_> {
        let section = fork::section();
        LockedBlock { block: self.block.lock().unwrap_or_else(PoisonError::into_inner), _section: section }
    }

    /// Returns an error if the block's memory is in use. Called under the lock.
    fn refuse_in_use(&self, operation: &str) -> Result<()> {
        let why = match self.exports.load(Ordering::Acquire) {
            0 if !self.is_kept_whole.load(Ordering::Acquire) => return Ok(()),
            0 => "np.ndarray(buffer=…) was called with it, and an array that was made so may be alive; use \
                  np.frombuffer, whose arrays say when they die"
                .to_owned(),
            count => format!("{count} views of it are still alive; delete them first"),
        };
        Err(Error::Buffer { detail: format!("{operation}: {why}") })
    }
}

impl PyStagingBuffer {
    /// Changes the block, unless its memory is in use and the change would matter. An error gets the advice for its
    /// number.
    fn change(
        &self,
        py: Python<'_>,
        operation: &'static str,
        must_be_unused: bool,
        advice: &[(Code, &str)],
        change: impl FnOnce(&mut Anonymous) -> std::result::Result<(), Code> + Send,
    ) -> PyResult<()> {
        py.detach(|| {
            let mut locked = self.staging.lock();
            if must_be_unused {
                self.staging.refuse_in_use(operation)?;
            }
            change(&mut locked.block).map_err(|errno| {
                let advice =
                    advice.iter().find(|(known, _)| *known == errno).map_or("", |(_, advice)| advice);
                system(operation, "", errno, advice)
            })
        })?;
        Ok(())
    }
}

/// Makes the kernel allocate all pages of a buffer now, with `threads` threads.
#[pyfunction]
pub fn populate(py: Python<'_>, buffer: &PyStagingBuffer, threads: usize) {
    py.detach(|| buffer.staging.lock().block.populate(threads));
}

#[pymethods]
impl PyStagingBuffer {
    /// With a descriptor, maps memory that another process shares. The descriptor stays the caller's.
    #[new]
    fn new(
        py: Python<'_>,
        nbytes: usize,
        shared: bool,
        huge_pages: &str,
        descriptor: Option<i32>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let huge = HugePages::from_word(huge_pages)?;
        let made = py.detach(|| match descriptor {
            Some(number) => Anonymous::from_descriptor(number, nbytes, huge),
            None if shared => Anonymous::shared(nbytes, huge),
            None => Anonymous::private(nbytes, huge),
        });
        let block = made.map_err(|errno| {
            let advice = match descriptor {
                Some(_) => "the descriptor is not one of a StagingBuffer of this size".to_owned(),
                None => format!("{nbytes} bytes were asked for"),
            };
            system("cannot allocate the buffer", "", errno, advice)
        })?;
        let (exports, is_kept_whole) = (AtomicUsize::new(0), AtomicBool::new(false));
        let staging = Arc::new(Staging { block: Mutex::new(block), exports, is_kept_whole });
        Ok(PyClassInitializer::from(PyExporter::new(staging.clone())).add_subclass(Self { staging }))
    }

    fn __len__(&self) -> usize {
        self.staging.lock().block.len()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.staging.lock().block.len()
    }

    #[getter]
    fn shared(&self) -> bool {
        self.staging.lock().block.descriptor().is_some()
    }

    #[getter]
    fn sealed(&self) -> bool {
        self.staging.lock().block.is_sealed()
    }

    #[getter]
    fn huge_page_bytes(&self, py: Python<'_>) -> u64 {
        // Outside the lock: the more mappings the process has, the longer the system takes to answer.
        py.detach(|| {
            let addresses = self.staging.lock().block.addresses();
            huge_page_bytes(&addresses)
        })
    }

    fn fileno(&self) -> PyResult<i32> {
        match self.staging.lock().block.descriptor() {
            Some(descriptor) => Ok(descriptor.as_raw_fd()),
            None => Err(PyValueError::new_err("a private buffer has no descriptor; use shared=True")),
        }
    }

    fn resize(&self, py: Python<'_>, nbytes: usize) -> PyResult<()> {
        let advice = [(Code::PERM, "a sealed buffer keeps its size, and a shared one can only grow")];
        self.change(py, "cannot resize the buffer", true, &advice, |block| block.resize(nbytes))
    }

    fn protect(&self, py: Python<'_>, protection: &str) -> PyResult<()> {
        let protection = Protection::from_word(protection)?;
        let advice = [(Code::PERM, "a sealed buffer stays read-only")];
        // A live view may be written to.
        let must_be_unused = protection == Protection::Read;
        let protect = |block: &mut Anonymous| block.protect(protection);
        self.change(py, "cannot protect the buffer", must_be_unused, &advice, protect)
    }

    fn seal(&self, py: Python<'_>) -> PyResult<()> {
        let advice = [
            (Code::INVAL, "only memory made with shared=True can be sealed"),
            (Code::BUSY, "another process has it mapped; let that one drop its buffer first"),
        ];
        self.change(py, "cannot seal the buffer", true, &advice, Anonymous::seal)
    }
}
