//! [`CheckedIndex`]: the result of checking an index. For example, a program that opens the same files for training and
//! for validation checks the index only once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::Result;
use crate::mapped_file::{FileReader, Keepable, MappedFile, StateCache};

use super::sequences::SequenceOrder;

/// Maximum memory of all kept indexes.
const MAX_BYTES: usize = 64 << 20;

/// The key includes the size of the token file, because the check compares the index's entries with it.
static CHECKED: StateCache<u64, CheckedIndex> = StateCache::new(MAX_BYTES);

#[derive(Debug)]
pub struct CheckedIndex {
    /// The order of the tokens, or `None` if it is the order of the token file.
    pub order: Option<SequenceOrder>,
    /// Set once all document entries are checked.
    pub has_checked_documents: AtomicBool,
}

impl CheckedIndex {
    /// Returns the result for an index that was just opened, and calls `check` if none is kept.
    pub fn of(
        index: &MappedFile,
        data_bytes: u64,
        check: impl FnOnce(&FileReader<'_>) -> Result<Option<SequenceOrder>>,
    ) -> Result<Arc<Self>> {
        let opened = index.opened()?;
        CHECKED.get_or_read(&opened.facts.identity, data_bytes, || {
            let reader = opened.reader();
            let order = check(&reader)?;
            // Verify the bytes first: changed bytes must not give a result to keep.
            reader.finish()?;
            Ok(Self { order, has_checked_documents: AtomicBool::new(false) })
        })
    }
}

impl Keepable for CheckedIndex {
    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.order.as_ref().map_or(0, SequenceOrder::memory_bytes)
    }
}
