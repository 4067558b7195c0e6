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
    /// [`StagingExport`]s that are alive. Raised under the lock, so that none appears during a resize.
    exports: AtomicUsize,
    /// Whether an array was made that keeps the buffer and not its export. It says nothing when it dies.
    is_kept_whole: AtomicBool,
}

/// The lock, in a section: a fork meanwhile would leave it locked in the child.
struct LockedBlock<'a> {
    // Dropped in this order.
    block: MutexGuard<'a, Anonymous>,
    _section: Section,
}

/// One export of a buffer: keeps its memory where it is.
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

    /// Locks the block if nothing uses its memory.
    fn lock_unused(&self, verb: &str) -> Result<LockedBlock<'_>> {
        let locked = self.lock();
        let why = match self.exports.load(Ordering::Acquire) {
            0 if !self.is_kept_whole.load(Ordering::Acquire) => return Ok(locked),
            0 => "np.ndarray(buffer=…) was called with it, and an array that was made so may be alive; use \
                  np.frombuffer, whose arrays say when they die"
                .to_owned(),
            count => format!("{count} views of it are still alive; delete them first"),
        };
        Err(Error::Buffer { detail: format!("cannot {verb} the buffer: {why}") })
    }
}

impl PyStagingBuffer {
    fn with(block: Anonymous) -> PyClassInitializer<Self> {
        let staging = Arc::new(Staging {
            block: Mutex::new(block),
            exports: AtomicUsize::new(0),
            is_kept_whole: AtomicBool::new(false),
        });
        PyClassInitializer::from(PyExporter::new(staging.clone())).add_subclass(Self { staging })
    }
}

#[pymethods]
impl PyStagingBuffer {
    /// With a descriptor, maps memory that another process shares; the descriptor stays the caller's.
    #[new]
    #[pyo3(signature = (nbytes, shared, huge_pages, descriptor))]
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
        made.map(Self::with).map_err(|errno| {
            let advice = match descriptor {
                Some(_) => "the descriptor is not one of a StagingBuffer of this size".to_owned(),
                None => format!("{nbytes} bytes were asked for"),
            };
            system("cannot allocate the buffer", "", errno, advice).into()
        })
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
        // Without the lock: the system answers the more slowly the more mappings the process has.
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
        py.detach(|| {
            self.staging.lock_unused("resize")?.block.resize(nbytes).map_err(|errno| {
                let advice = match errno {
                    Code::PERM => "a sealed buffer keeps its size, and a shared one can only grow",
                    _ => "",
                };
                system("cannot resize the buffer", "", errno, advice)
            })
        })?;
        Ok(())
    }

    fn protect(&self, py: Python<'_>, protection: &str) -> PyResult<()> {
        let protection = Protection::from_word(protection)?;
        py.detach(|| {
            // A view that is alive may be written to.
            let mut locked = match protection {
                Protection::Read => self.staging.lock_unused("protect")?,
                Protection::ReadWrite => self.staging.lock(),
            };
            locked.block.protect(protection).map_err(|errno| {
                let advice = if errno == Code::PERM { "a sealed buffer stays read-only" } else { "" };
                system("cannot change the buffer's protection", "", errno, advice)
            })
        })?;
        Ok(())
    }

    fn seal(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            self.staging.lock_unused("seal")?.block.seal().map_err(|errno| {
                let advice = match errno {
                    Code::INVAL => "only memory made with shared=True can be sealed",
                    Code::BUSY => "another process has it mapped; let that one drop its buffer first",
                    _ => "",
                };
                system("cannot seal the buffer", "", errno, advice)
            })
        })?;
        Ok(())
    }
}
