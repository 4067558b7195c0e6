//! [`CheckedIndex`]: the result of checking an index. A program that opens the same files for training and again for
//! validation checks the index once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::Result;
use crate::mapped_file::{FileReader, Keepable, MappedFile, StateCache};

use super::sequences::SequenceOrder;

/// Upper bound of the memory of all indexes that are kept.
const MAX_BYTES: usize = 64 << 20;

/// The key includes the size of the token file, because the entries of an index are checked against it.
static CHECKED: StateCache<u64, CheckedIndex> = StateCache::new(MAX_BYTES);

#[derive(Debug)]
pub struct CheckedIndex {
    /// The order of the tokens; `None` for the order of the token file.
    pub order: Option<SequenceOrder>,
    /// Set once all entries of the documents are checked.
    pub has_checked_documents: AtomicBool,
}

impl CheckedIndex {
    /// Returns the result for an index that was just opened; calls `check` if none is kept.
    pub fn of(
        index: &MappedFile,
        data_bytes: u64,
        check: impl FnOnce(&FileReader<'_>) -> Result<Option<SequenceOrder>>,
    ) -> Result<Arc<Self>> {
        let opened = index.opened()?;
        CHECKED.get_or_read(&opened.facts.identity, data_bytes, || {
            let reader = opened.reader();
            let order = check(&reader)?;
            // Bytes that may not be the file's give no result to keep.
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
