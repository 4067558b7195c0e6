//! Rejects files that are not token streams, recognised by their content, their names and their neighbours.

use std::path::Path;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::file_kinds::{FileKind, SAMPLE_BYTES, Sample, TEXT, recognise};
use crate::mapped_file::{self, Opened};

use super::layout::{item_bytes, read_prefix};

/// Suffixes of files that accompany tokens, or contain something else.
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

/// Returns an error for a file that is known to be something else. `first` is its beginning.
pub fn check(opened: &Opened, first: &[u8], dtype: Option<Dtype>) -> Result<()> {
    let path = opened.path();
    if let Some(kind) = kind_of(opened, first) {
        // Text is a stream of 8-bit tokens for a caller who requests them.
        if *kind != TEXT || dtype.is_none_or(|dtype| item_bytes(dtype) > 1) {
            return Err(refusal(path, &format!("the file is {}; {}", kind.name, kind.for_tokens)));
        }
    }
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let by_name = || NAMES.iter().find(|(end, _)| name.ends_with(end)).map(|(_, what)| *what);
    let by_neighbour = || {
        let is_chunk =
            name.starts_with("chunk-") && path.extension().is_some_and(|extension| extension == "bin");
        (is_chunk && mapped_file::identity_at(&path.with_file_name("index.json")).is_ok())
            .then_some("a chunk of LitData (index.json lies next to it); export its tokens to a flat file")
    };
    match by_name().or_else(by_neighbour) {
        Some(what) => Err(refusal(path, &format!("the file is {what}"))),
        None => Ok(()),
    }
}

/// Returns the error for a token file whose index has no Megatron header.
pub fn bad_index(path: &Path, index: &Opened) -> Result<Error> {
    let first = read_prefix(index, SAMPLE_BYTES as u64)?;
    let what = match kind_of(index, &first) {
        Some(kind) => format!("{}; {}", kind.name, kind.for_tokens),
        None if first.is_empty() => "empty; copy it again".to_owned(),
        None => "no Megatron index; copy the index that belongs to the file".to_owned(),
    };
    Ok(refusal(path, &format!("{} next to it is {what}", index.path().display())))
}

/// Returns the error for a token file that has the name of a Megatron pair but no index.
pub fn missing_index(path: &Path, index: &Path) -> Error {
    let detail = format!(
        "the name is that of a Megatron pair, but {} does not exist; copy it next to the file",
        index.display()
    );
    refusal(path, &detail)
}

fn kind_of(opened: &Opened, first: &[u8]) -> Option<&'static FileKind> {
    let size = opened.size();
    let last = || opened.exact_reader().read_last(size.checked_sub(1)?, 1).ok()?.first().copied();
    recognise(&Sample { first, size, last: &last })
}

fn refusal(path: &Path, what: &str) -> Error {
    Error::format(
        path,
        0,
        format!("{what}; if it is a raw token stream all the same, open_tokens reads it with format=\"raw\""),
    )
}
