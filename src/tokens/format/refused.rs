//! Files that are not token streams, recognised by their first bytes, their names and their neighbours.

use std::path::Path;

use crate::error::{Error, Result};
use crate::mapped_file;

/// The length of the longest magic number, and more.
pub const SNIFF_BYTES: u64 = 16;

/// First bytes of files that are something else.
const MAGIC: &[(&[u8], &str)] = &[
    (b"MMIDIDX\0\0", "a Megatron index that is not called .idx; rename it, with its .bin next to it"),
    (
        b"TNTIDX\0\0",
        "a fairseq or gpt-neox index (.idx), not tokens; convert the data set to Megatron's format",
    ),
    (&20_240_522_i32.to_le_bytes(), "an llm.c evaluation file, not a token stream"),
    (b"PK\x03\x04", "a zip archive (.npz?); extract it first"),
    // The third byte is the method of compression; gzip has only one.
    (b"\x1F\x8B\x08", "compressed by gzip; decompress it first"),
    (b"\x28\xB5\x2F\xFD", "compressed by zstd; decompress it first"),
    (b"PAR1", "a Parquet file; tokenize its text, or save its column of tokens"),
    (b"ARROW1\0\0", "an Arrow file; save its column of tokens"),
];

/// Suffixes of files that lie next to tokens, or hold something else.
const NAMES: &[(&str, &str)] = &[
    (".ds.index", "datatrove's index of documents, not tokens; give the .ds file"),
    (".ds.metadata", "datatrove's metadata, not tokens; give the .ds file"),
    (".ds.loss", "datatrove's loss mask, not tokens; give the .ds file"),
    (".idx", "called .idx and is no Megatron index"),
    (".mds", "a shard of MosaicML Streaming (MDS); export its tokens to a flat file"),
    (".csv.gz", "a list of documents, not tokens; give the file next to it"),
    (".parquet", "a Parquet file; tokenize its text, or save its column of tokens"),
    (".safetensors", "a safetensors file of weights; open it by safe_open or open_checkpoint"),
    (".json", "JSON; tokenize its text"),
    (".jsonl", "JSON lines; tokenize their text"),
    (".pkl", "a pickle, such as nanoGPT's meta.pkl; give the .bin file"),
];

/// Refuses a file that is known to be something else.
pub fn check(path: &Path, prefix: &[u8]) -> Result<()> {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let by_name = || NAMES.iter().find(|(end, _)| name.ends_with(end)).map(|(_, what)| *what);
    let by_neighbour = || {
        let is_chunk =
            name.starts_with("chunk-") && path.extension().is_some_and(|extension| extension == "bin");
        (is_chunk && mapped_file::identity_at(&path.with_file_name("index.json")).is_ok())
            .then_some("a chunk of LitData (index.json lies next to it); export its tokens to a flat file")
    };
    match by_magic(prefix).or_else(by_name).or_else(by_neighbour) {
        Some(what) => Err(refusal(path, &format!("the file is {what}"))),
        None => Ok(()),
    }
}

/// Refuses a file next to which an index of another kind lies.
pub fn check_neighbour(path: &Path, index: &Path, index_prefix: &[u8]) -> Result<()> {
    match by_magic(index_prefix) {
        Some(what) => Err(refusal(path, &format!("{} next to it is {what}", index.display()))),
        None => Ok(()),
    }
}

fn by_magic(prefix: &[u8]) -> Option<&'static str> {
    MAGIC.iter().find(|(magic, _)| prefix.starts_with(magic)).map(|(_, what)| *what)
}

fn refusal(path: &Path, what: &str) -> Error {
    Error::format(
        path,
        0,
        format!("{what}; if it is a raw token stream all the same, open_tokens reads it with format=\"raw\""),
    )
}
