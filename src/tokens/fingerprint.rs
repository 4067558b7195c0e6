//! The fingerprint of a corpus, so that a saved position is not used with other data.
//!
//! It covers the type and the format. For each shard in order it covers the number of tokens, the size of the file,
//! [`SAMPLE_BYTES`] of tokens from the beginning, the middle and the end, and the size and end of the file that records
//! its documents. For a view it covers the whole order of tokens, and for a part of a file its first token. It ignores
//! paths, times and machines. It misses a change between the samples that keeps the size.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

use crate::dtype::Dtype;
use crate::error::Result;
use crate::mapped_file::Opened;

use super::format::layout::{Format, TokenLayout, item_bytes, token_dtype_name};
use super::format::sequences::SequenceOrder;

/// Number of bytes read at each sampled position of a shard.
const SAMPLE_BYTES: u64 = 1024;

/// Version of the fingerprint. It increases when the same data gives another number.
const VERSION: u64 = 1;

/// Returns the fingerprint of a shard, from its token file, the file that records its documents, and the order of its
/// tokens.
///
/// `part` is the first token in the file if the shard is a part of it, and `None` for a whole file.
pub fn of_shard(
    layout: &TokenLayout,
    part: Option<u64>,
    data: &Opened,
    index: Option<&Opened>,
    order: Option<&SequenceOrder>,
) -> Result<u64> {
    let skipped = if order.is_some() { 0 } else { part.unwrap_or(0) };
    let first = layout.data_offset_bytes + skipped * item_bytes(layout.dtype);
    let length = match order {
        Some(_) => data.size() - first,
        None => layout.tokens * item_bytes(layout.dtype),
    };
    let sample = length.min(SAMPLE_BYTES);
    let mut hash = XxHash3_64::new();
    hash.write(&layout.tokens.to_le_bytes());
    hash.write(&data.size().to_le_bytes());
    for place in [0, (length - sample) / 2, length - sample] {
        hash.write(&data.exact_reader().read_last(first + place, sample)?);
    }
    if let Some(index) = index {
        let sample = index.size().min(SAMPLE_BYTES);
        hash.write(&index.size().to_le_bytes());
        hash.write(&index.exact_reader().read_last(index.size() - sample, sample)?);
    }
    if let Some(start) = part {
        hash.write(&start.to_le_bytes());
    }
    if let Some(order) = order {
        hash.write(&order.digest.to_le_bytes());
    }
    Ok(hash.finish())
}

/// Returns the fingerprint of a corpus, from its shards' fingerprints.
pub fn of_corpus(dtype: Dtype, format: Format, shards: &[u64]) -> u64 {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for word in [token_dtype_name(dtype), format.word()] {
        bytes.extend_from_slice(word.as_bytes());
        bytes.push(0);
    }
    for part in shards {
        bytes.extend_from_slice(&part.to_le_bytes());
    }
    XxHash3_64::oneshot(&bytes)
}
