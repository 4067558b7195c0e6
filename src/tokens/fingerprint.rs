//! A number for the data of a corpus, so that a saved position is not used on other data.
//!
//! It covers type, format, and of each shard in order: the number of tokens, the file's size,
//! [`SAMPLE_BYTES`] of its tokens from the beginning, the middle and the end, and of the file that records
//! its documents the size and the end. It does not cover paths, times and machines, nor a change between
//! the samples that leaves the size as it was.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::Result;

use super::corpus::TokenCorpus;
use super::format::token_dtype_name;

/// What is read at each place of a shard.
const SAMPLE_BYTES: u64 = 1024;

/// Goes up when the same data gives another number.
const VERSION: u64 = 1;

pub fn of_shard(corpus: &TokenCorpus, number: usize) -> Result<u64> {
    let shard = &corpus.shards()[number];
    let opened = corpus.opened(number)?;
    let first = shard.layout.data_offset_bytes;
    let length = shard.layout.tokens * corpus.item_bytes();
    let sample = length.min(SAMPLE_BYTES);
    let mut hash = Xxh3::new();
    hash.update(&shard.layout.tokens.to_le_bytes());
    hash.update(&opened.size().to_le_bytes());
    for place in [0, (length - sample) / 2, length - sample] {
        hash.update(&opened.peek(first + place, sample)?);
    }
    if let Some((_, index)) = shard.documents {
        let index = corpus.index_file(index)?;
        let sample = index.size().min(SAMPLE_BYTES);
        hash.update(&index.size().to_le_bytes());
        hash.update(&index.peek(index.size() - sample, sample)?);
    }
    Ok(hash.digest())
}

pub fn of_corpus(corpus: &TokenCorpus, shards: &[u64]) -> u64 {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for word in [token_dtype_name(corpus.dtype()), corpus.format().word()] {
        bytes.extend_from_slice(word.as_bytes());
        bytes.push(0);
    }
    for part in shards {
        bytes.extend_from_slice(&part.to_le_bytes());
    }
    xxh3_64(&bytes)
}
