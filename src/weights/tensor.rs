//! One tensor of an open file, beyond the life of the object that opened it.

use std::path::Path;
use std::sync::Arc;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::{Opened, View};
use crate::os::memory::Uninit;

use crate::slicing::{self, KeepGoing, Selection, SlicePlan};

/// Keeps the file open, also when the [`super::file::WeightFile`] is closed.
#[derive(Debug)]
pub struct StoredTensor {
    opened: Arc<Opened>,
    dtype: Dtype,
    shape: Vec<u64>,
    offset: u64,
    len: u64,
}

impl StoredTensor {
    /// The tensor's bytes lie in the file, from `offset` on.
    pub(super) fn new(opened: Arc<Opened>, dtype: Dtype, shape: &[u64], (offset, len): (u64, u64)) -> Self {
        Self { opened, dtype, shape: shape.to_vec(), offset, len }
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    pub fn path(&self) -> &Path {
        self.opened.path()
    }

    /// A range of its bytes in the read-only mapping; `None` where there is none.
    pub fn view(&self, first: u64, len: u64) -> Result<Option<View>> {
        self.opened.view(self.place(first, len)?, len)
    }

    /// Likewise in the mapping whose pages are copied when they are written.
    pub fn copy_on_write_view(&self, first: u64, len: u64) -> Result<Option<View>> {
        self.opened.copy_on_write_view(self.place(first, len)?, len)
    }

    fn place(&self, first: u64, len: u64) -> Result<u64> {
        let is_inside = first.checked_add(len).is_some_and(|end| end <= self.len);
        is_inside.then(|| self.offset + first).ok_or_else(|| {
            Error::argument(format!("{len} bytes from {first} on of a tensor of {} bytes", self.len))
        })
    }

    /// What [`Selection::new`] says of a part of this tensor.
    pub fn select(&self, first: u64, shape: &[u64], strides: &[i64], item_bytes: u64) -> Result<Selection> {
        Selection::new(first, shape, strides, item_bytes, self.len)
    }

    /// Copies what is selected to `out`; see [`slicing::fill()`].
    pub fn read(&self, selection: Selection, out: Uninit<'_>, keep_going: &mut KeepGoing<'_>) -> Result<()> {
        slicing::fill(&self.opened, self.offset, &SlicePlan::new(selection), out, keep_going)
    }
}
