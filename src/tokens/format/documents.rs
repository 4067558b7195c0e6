//! Looks up the recorded beginnings of a file's documents.
//!
//! No table is loaded: an answer takes a few reads of a few bytes. A document never crosses files: each file that
//! records documents begins with one. Documents may be empty; several then begin at the same position.

use std::fmt::Debug;

use crate::error::{Error, Result};
use crate::mapped_file::FileReader;

/// Maximum number of documents at one position to pass one by one. A search skips further documents.
const SAME_PLACE: u32 = 64;

/// Number of entries checked at a time.
const CHUNK_ENTRIES: u64 = 4096;

/// The record of a file's documents, as its format stores it.
pub trait DocumentTable: Debug + Send + Sync {
    /// Returns the number of documents.
    fn count(&self) -> u64;

    /// Checks every entry. Call this before the other methods.
    fn check(&self, index: &FileReader<'_>) -> Result<()>;

    /// Returns the first token of document `number` within the file, or, for `count()`, the end of the last document.
    fn start(&self, index: &FileReader<'_>, number: u64) -> Result<u64>;
}

impl dyn DocumentTable {
    /// Returns the first document from number `from` on that begins at or after `token`, or `count()`.
    pub fn first_at(&self, index: &FileReader<'_>, from: u64, token: u64) -> Result<u64> {
        let (mut low, mut high) = (from, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(index, middle)? < token {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Returns each position in `[low, high)` where documents begin, in ascending order and without repetition.
    pub fn places(&self, index: &FileReader<'_>, (low, high): (u64, u64)) -> Result<Vec<u64>> {
        let mut places = Vec::new();
        let mut number = self.first_at(index, 0, low)?;
        let mut last = low;
        let mut same = 0;
        while number < self.count() {
            let start = self.start(index, number)?;
            if start < last {
                return Err(out_of_order(index, number, start, last));
            }
            if start >= high {
                break;
            }
            number += 1;
            if places.last() == Some(&start) {
                same += 1;
                if same == SAME_PLACE {
                    number = self.first_at(index, number, start + 1)?;
                    same = 0;
                }
            } else {
                places.push(start);
                same = 0;
            }
            last = start;
        }
        Ok(places)
    }
}

/// Checks that `count` entries of 64 bits from `offset` on ascend from `first`, if it is known, to `last`. `what`
/// describes an entry, for example "the end of document".
pub fn check_ascending(
    index: &FileReader<'_>,
    offset: u64,
    count: u64,
    (first, last): (Option<u64>, u64),
    what: &str,
) -> Result<()> {
    let refuse = |number: u64, found: i64, expected: &str| {
        Err(unexpected(index, offset + 8 * number, what, (number, found), expected))
    };
    let mut before = 0;
    for chunk in (0..count).step_by(CHUNK_ENTRIES as usize) {
        let bytes = index.read(offset + 8 * chunk, 8 * CHUNK_ENTRIES.min(count - chunk))?;
        let entries = bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
        for (number, entry) in (chunk..).zip(entries) {
            if let Some(first) = first.filter(|&first| number == 0 && u64::try_from(entry) != Ok(first)) {
                return refuse(number, entry, &first.to_string());
            }
            if entry < before {
                return refuse(number, entry, &format!("{before} or more, as for the one before it"));
            }
            before = entry;
        }
    }
    match count.checked_sub(1) {
        Some(number) if u64::try_from(before) != Ok(last) => refuse(number, before, &last.to_string()),
        _ => Ok(()),
    }
}

/// Returns the error for an entry with a wrong value.
pub fn unexpected(
    index: &FileReader<'_>,
    offset: u64,
    what: &str,
    (number, found): (u64, i64),
    expected: &str,
) -> Error {
    let detail =
        format!("{what} {number} is {found}, expected {expected}; the index is damaged, build it again");
    Error::format(index.opened.path(), offset, detail)
}

/// Returns the error for a document that begins before the previous one.
pub fn out_of_order(index: &FileReader<'_>, number: u64, start: u64, last: u64) -> Error {
    let detail = format!(
        "document {number} begins at token {start}, before the one in front of it, which begins at {last}; \
         the index is damaged"
    );
    Error::format(index.opened.path(), None, detail)
}
