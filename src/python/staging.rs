//! `StagingBuffer`. Its Python subclass in `staging.py` has the documentation.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::export::{Access, Export, Keeper, PyExporter, Source};
use crate::error::{Error, Result};
use crate::os::errno::Code;
use crate::os::memory::anonymous::{Anonymous, HugePages, Protection};

#[pyclass(name = "StagingBuffer", module = "pagestream._native", extends = PyExporter, subclass, weakref, frozen)]
#[derive(Debug)]
pub struct PyStagingBuffer {
    staging: Staging,
}

#[derive(Debug, Clone)]
struct Staging {
    block: Arc<Mutex<Anonymous>>,
    /// Exports that are out. Raised under the lock, so that none appears during a resize.
    exports: Arc<AtomicUsize>,
}

/// One export: keeps the memory, and counts itself out.
struct Exported {
    block: Arc<Mutex<Anonymous>>,
    exports: Arc<AtomicUsize>,
}

impl Keeper for Exported {
    fn is_last(&self) -> bool {
        Arc::strong_count(&self.block) == 1
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        self.exports.fetch_sub(1, Ordering::AcqRel);
    }
}

fn system(operation: &'static str, errno: Code, advice: &str) -> Error {
    Error::System { operation, path: PathBuf::new(), errno: errno.raw_os_error(), advice: advice.into() }
}

fn huge_pages_of(word: &str) -> PyResult<HugePages> {
    match word {
        "auto" => Ok(HugePages::Auto),
        "always" => Ok(HugePages::Always),
        "never" => Ok(HugePages::Never),
        _ => Err(PyValueError::new_err(format!(
            "huge_pages is \"auto\", \"always\" or \"never\", not {word:?}"
        ))),
    }
}

impl Source for Staging {
    fn export(&self) -> PyResult<Export> {
        let block = self.lock();
        let access = match block.protection() {
            Protection::Read => Access::ReadOnly,
            Protection::ReadWrite => Access::Writable,
        };
        self.exports.fetch_add(1, Ordering::AcqRel);
        let keeper = Box::new(Exported { block: self.block.clone(), exports: self.exports.clone() });
        Ok(Export { address: block.as_ptr(), len: block.len(), access, keeper })
    }

    fn is_last(&self) -> bool {
        Arc::strong_count(&self.block) == 1
    }
}

impl Staging {
    fn lock(&self) -> MutexGuard<'_, Anonymous> {
        self.block.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block, while no view of it is out.
    fn lock_unused(&self, verb: &str) -> Result<MutexGuard<'_, Anonymous>> {
        let block = self.lock();
        match self.exports.load(Ordering::Acquire) {
            0 => Ok(block),
            count => Err(Error::Buffer {
                detail: format!(
                    "cannot {verb} the buffer: {count} views of it are still alive; delete them first"
                ),
            }),
        }
    }
}

impl PyStagingBuffer {
    fn with(block: Anonymous) -> PyClassInitializer<Self> {
        let staging = Staging { block: Arc::new(Mutex::new(block)), exports: Arc::new(AtomicUsize::new(0)) };
        PyClassInitializer::from(PyExporter::new(staging.clone())).add_subclass(Self { staging })
    }
}

#[pymethods]
impl PyStagingBuffer {
    /// With a descriptor, maps the memory that another process shares; the descriptor stays the
    /// caller's.
    #[new]
    #[pyo3(signature = (nbytes, shared, huge_pages, descriptor))]
    fn new(
        py: Python<'_>,
        nbytes: usize,
        shared: bool,
        huge_pages: &str,
        descriptor: Option<i32>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let huge = huge_pages_of(huge_pages)?;
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
            system("cannot allocate the buffer", errno, &advice).into()
        })
    }

    fn __len__(&self) -> usize {
        self.staging.lock().len()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.staging.lock().len()
    }

    #[getter]
    fn address(&self) -> usize {
        self.staging.lock().as_ptr() as usize
    }

    #[getter]
    fn shared(&self) -> bool {
        self.staging.lock().descriptor().is_some()
    }

    #[getter]
    fn sealed(&self) -> bool {
        self.staging.lock().is_sealed()
    }

    #[getter]
    fn protection(&self) -> &'static str {
        match self.staging.lock().protection() {
            Protection::Read => "read",
            Protection::ReadWrite => "readwrite",
        }
    }

    #[getter]
    fn wants_huge_pages(&self) -> bool {
        self.staging.lock().wants_huge_pages()
    }

    #[getter]
    fn huge_page_bytes(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.staging.lock().huge_page_bytes())
    }

    fn fileno(&self) -> PyResult<i32> {
        match self.staging.lock().descriptor() {
            Some(descriptor) => Ok(descriptor.as_raw_fd()),
            None => Err(PyValueError::new_err("a private buffer has no descriptor; use shared=True")),
        }
    }

    fn resize(&self, py: Python<'_>, nbytes: usize) -> PyResult<()> {
        py.detach(|| {
            self.staging.lock_unused("resize")?.resize(nbytes).map_err(|errno| {
                let advice = match errno {
                    Code::PERM => "a sealed buffer keeps its size, and a shared one can only grow",
                    _ => "",
                };
                system("cannot resize the buffer", errno, advice)
            })
        })?;
        Ok(())
    }

    fn protect(&self, py: Python<'_>, protection: &str) -> PyResult<()> {
        let protection = match protection {
            "read" => Protection::Read,
            "readwrite" => Protection::ReadWrite,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "protection is \"read\" or \"readwrite\", not {protection:?}"
                )));
            }
        };
        py.detach(|| {
            // A view that is out believes that it may write.
            let mut block = match protection {
                Protection::Read => self.staging.lock_unused("protect")?,
                Protection::ReadWrite => self.staging.lock(),
            };
            block.protect(protection).map_err(|errno| {
                let advice = if errno == Code::PERM { "a sealed buffer stays read-only" } else { "" };
                system("cannot change the buffer's protection", errno, advice)
            })
        })?;
        Ok(())
    }

    fn seal(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            self.staging.lock_unused("seal")?.seal().map_err(|errno| {
                let advice = match errno {
                    Code::INVAL => "only memory made with shared=True can be sealed",
                    Code::BUSY => "another process has it mapped; let that one drop its buffer first",
                    _ => "",
                };
                system("cannot seal the buffer", errno, advice)
            })
        })?;
        Ok(())
    }
}
