//! Views of large tensors, which give written pages back.
//!
//! A program that converts a checkpoint layer by layer writes to each tensor and drops it. The written pages would stay
//! in memory until nothing uses the file any more. The last view of a tensor therefore frees the written pages when it
//! is dropped:
//!
//! 1. It looks up one page per 2 MiB in the page table. If none of them was written, nothing is done. Reading all
//!    entries would take a third of the time of a sum, because the kernel looks at the record of each page.
//! 2. Pages at the edges also belong to a neighbouring tensor, which may be in use. There the tensor's bytes are copied
//!    from the file's read-only mapping. Otherwise a later view of the tensor would mix the file's bytes with written
//!    ones.
//! 3. It discards the writes to the pages inside.
//!
//! The writes stay in some cases: a few written rows, small tensors, views of less than 2 MiB, and arrays with a
//! read-only flag.

use std::ops::Range;
use std::sync::Arc;

use super::opened::{Opened, View};
use super::read::can_copy_from_mappings;
use super::view_counts::ViewCounts;
use crate::allocate;
use crate::os::memory::advise::discard_writes;
use crate::os::memory::map::Region;
use crate::os::memory::page_table::Pages;
use crate::os::memory::{Uninit, page_bytes};

/// Minimum size of a tensor that gives pages back.
pub const LARGE_TENSOR_BYTES: u64 = 8 << 20;
/// Distance between the pages that are looked up. Smaller views look up none.
const LOOK_EVERY_BYTES: usize = 2 << 20;

/// A view for a user of a large tensor, or of a part of it.
#[derive(Debug)]
pub struct TensorView {
    view: View,
    copy_on_write: Arc<Region>,
    read_only: Arc<Region>,
    /// The range of the whole tensor in the file.
    tensor: Range<usize>,
    counts: Arc<ViewCounts>,
}

impl Opened {
    /// Turns a view of copy-on-write pages into a view that gives written pages back. The range is the tensor's place
    /// in the file. `None` for other views, and if the tensor is small.
    pub fn tensor_view(&self, view: &View, tensor: &Range<u64>, is_writable: bool) -> Option<TensorView> {
        // A tensor lies inside the file, and the file is mapped.
        let len = tensor.end - tensor.start;
        let tensor = tensor.start as usize..tensor.end as usize;
        let (copy_on_write, read_only) = (self.copy_on_write()?, self.region.as_ref()?);
        if len < LARGE_TENSOR_BYTES || !view.is_of(copy_on_write) {
            return None;
        }
        let counts = self.view_counts.clone();
        // A view of a few rows keeps the tensor's pages like any other view. When dropped, it does not look for written
        // pages, which would take longer than creating the view.
        counts.add(tensor.start, is_writable && view.len() >= LOOK_EVERY_BYTES);
        let (copy_on_write, read_only) = (copy_on_write.clone(), read_only.clone());
        Some(TensorView { view: view.clone(), copy_on_write, read_only, tensor, counts })
    }
}

impl TensorView {
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Makes the tensor's pages show the file again, if some were written. Best effort: if a step fails, all written
    /// pages stay.
    fn give_back(&self) -> Option<()> {
        let Range { start, end } = self.tensor;
        let page = page_bytes();
        let inside = start.next_multiple_of(page)..end / page * page;
        let (address, _) = self.copy_on_write.range_to_ask_about(0, end)?;
        let address = address.expose_provenance();
        let mut pages = Pages::new()?;
        let looks = inside.clone().step_by(LOOK_EVERY_BYTES).chain([inside.end - page]);
        let mut is_written = |offset: usize| pages.is_written(address + offset);
        let first_other = looks.map(&mut is_written).find(|found| *found != Some(false));
        if first_other != Some(Some(true)) || !can_copy_from_mappings() {
            return None;
        }
        let mut edges = Vec::new();
        for edge in [start..inside.start, inside.end..end] {
            if !edge.is_empty() && is_written(edge.start)? {
                let mut bytes = allocate::filled(0, edge.len(), "the edge of a tensor").ok()?;
                self.read_only.copy_out(edge.start, Uninit::of(&mut bytes)).ok()?;
                allocate::push(&mut edges, (edge.start, bytes), "the edges of a tensor").ok()?;
            }
        }
        self.counts.if_unused(start, || {
            if discard_writes(&self.copy_on_write, &inside).is_ok() {
                for (offset, bytes) in &edges {
                    self.copy_on_write.overwrite(*offset, bytes);
                }
            }
        });
        Some(())
    }
}

impl Drop for TensorView {
    fn drop(&mut self) {
        if self.counts.remove(self.tensor.start) && self.copy_on_write.check_damage().is_ok() {
            self.give_back();
        }
    }
}
