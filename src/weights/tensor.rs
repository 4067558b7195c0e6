//! [`StoredTensor`]: one tensor of a file, readable after the object that opened the file is closed.

use std::path::Path;
use std::sync::Arc;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::{Opened, View};
use crate::os::memory::Uninit;
use crate::slicing::{self, KeepGoing, Selection, SlicePlan};

use super::header::TensorEntry;

/// One tensor. It keeps the file open, also when the [`super::file::WeightFile`] is closed.
#[derive(Debug)]
pub struct StoredTensor {
    opened: Arc<Opened>,
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    offset: u64,
    /// The size in bytes.
    pub len: u64,
}

impl StoredTensor {
    /// Takes an entry of the file's own header, whose checks guarantee that the tensor lies in the file.
    pub(super) fn new(opened: Arc<Opened>, entry: &TensorEntry<'_>) -> Self {
        let TensorEntry { dtype, shape, offset, len, .. } = *entry;
        Self { opened, dtype, shape: shape.to_vec(), offset, len }
    }

    pub fn path(&self) -> &Path {
        &self.opened.path
    }

    /// Returns a range of the tensor's bytes in the read-only mapping; `None` where there is no mapping.
    pub fn view(&self, first: u64, len: u64) -> Result<Option<View>> {
        self.opened.view(self.place(first, len)?, len)
    }

    /// Returns a range of the tensor's bytes in the copy-on-write mapping; `None` where there is no mapping.
    pub fn copy_on_write_view(&self, first: u64, len: u64) -> Result<Option<View>> {
        self.opened.copy_on_write_view(self.place(first, len)?, len)
    }

    fn place(&self, first: u64, len: u64) -> Result<u64> {
        let is_inside = first.checked_add(len).is_some_and(|end| end <= self.len);
        is_inside.then(|| self.offset + first).ok_or_else(|| {
            Error::argument(format!("{len} bytes from {first} on of a tensor of {} bytes", self.len))
        })
    }

    /// Copies a selection of this tensor to `out`; see [`slicing::fill()`].
    pub fn read(&self, selection: Selection, out: Uninit<'_>, keep_going: &mut KeepGoing<'_>) -> Result<()> {
        slicing::fill(&self.opened, self.offset, &SlicePlan::new(selection), out, keep_going)
    }
}
