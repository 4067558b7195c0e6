//! Megatron's `.idx` and `.bin` (<https://github.com/NVIDIA/Megatron-LM>, `megatron/core/datasets/indexed_dataset.py`),
//! version 1. The `.bin` contains only tokens. The `.idx` contains the magic number, version, type, S, D, then lengths
//! `int32[S]`, byte pointers `int64[S]`, documents as numbers of sequences `int64[D]`, and `int8[S]` modes in
//! multimodal files. No array is aligned.
//!
//! Opening checks all sequences, because their lengths determine the number of tokens. The documents are checked before
//! they are first used.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::{FileReader, MappedFile};

use super::checked_index::CheckedIndex;
use super::documents::{DocumentTable, check_ascending, unexpected};
use super::layout::{
    Format, Opener, TokenFile, TokenIndex, TokenLayout, agree_dtype, item_bytes, with_suffix,
};
use super::sequences::Sequences;

pub const MAGIC: &[u8] = b"MMIDIDX\0\0";

const HEADER_BYTES: u64 = 34;

/// The name for an entry of the document array in errors.
const DOCUMENT: &str = "the first sequence of document";

/// The numbers of a header.
#[derive(Debug)]
struct IndexHeader {
    dtype: Dtype,
    sequences: u64,
    /// Entries of the document array: one more than documents.
    entries: u64,
}

/// The document array: the first sequence of each document.
#[derive(Debug)]
struct DocumentSequences {
    sequences: Sequences,
    checked: Arc<CheckedIndex>,
    entries: u64,
    tokens: u64,
}

/// Returns the paths of the index and the token file, given either path or their common stem, for example `corpus`.
pub fn paths(path: &Path) -> (PathBuf, PathBuf) {
    let stem = match path.extension().and_then(|extension| extension.to_str()) {
        Some("idx" | "bin") => path.with_extension(""),
        _ => path.to_owned(),
    };
    (with_suffix(&stem, ".idx"), with_suffix(&stem, ".bin"))
}

/// Returns whether a file has a name from Megatron's `preprocess_data.py`: `<prefix>_<key>_document.bin`.
pub fn is_name_of_pair(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    path.extension().is_some_and(|extension| extension == "bin")
        && stem.is_some_and(|stem| stem.ends_with("_document") || stem.ends_with("_sentence"))
}

/// Opens the pair. The index may be open already.
pub fn open(
    path: &Path,
    index: Option<MappedFile>,
    dtype: Option<Dtype>,
    how: Opener<'_>,
) -> Result<TokenFile> {
    let (index_path, data_path) = paths(path);
    let index = index.map_or_else(|| how.open(&index_path), Ok)?;
    let opened = index.opened()?;
    let header = IndexHeader::read(&opened.exact_reader())?;
    agree_dtype(index.path(), 17, header.dtype, dtype)?;
    let data = how.open_if_there(&data_path)?.ok_or_else(|| {
        let detail = format!(
            "the Megatron index has no token file: {} does not exist; expected both next to each other",
            data_path.display()
        );
        Error::format(index.path(), None, detail)
    })?;
    let item_bytes = item_bytes(header.dtype);
    let data_bytes = data.size();
    if !data_bytes.is_multiple_of(item_bytes) {
        let detail = format!(
            "the token file has {data_bytes} bytes, expected a whole number of tokens of {item_bytes} bytes"
        );
        return Err(Error::format(index.path(), HEADER_BYTES, detail));
    }
    let sequences = Sequences { count: header.sequences, offset_bytes: HEADER_BYTES, item_bytes, data_bytes };
    let checked = CheckedIndex::of(&index, data_bytes, |reader| sequences.check(reader))?;
    let tokens = checked.order.as_ref().map_or(data_bytes / item_bytes, |order| order.tokens);
    if tokens == 0 && data_bytes > 0 {
        let detail =
            format!("the index lists 0 tokens, but the token file has {data_bytes} bytes; build it again");
        return Err(Error::format(index.path(), 18, detail));
    }
    let documents =
        DocumentSequences { sequences, checked: checked.clone(), entries: header.entries, tokens };
    let reader = opened.reader();
    documents.check_ends(&reader)?;
    reader.finish()?;
    let documents = Box::new(documents);
    let layout = TokenLayout { format: Format::Megatron, dtype: header.dtype, data_offset_bytes: 0, tokens };
    Ok(TokenFile { file: data, layout, index: Some(TokenIndex { file: index, documents, checked }) })
}

impl IndexHeader {
    fn read(index: &FileReader<'_>) -> Result<Self> {
        let refuse = |offset, detail| refuse(index, offset, detail);
        let size = index.opened.size();
        if size < HEADER_BYTES {
            let detail = format!(
                "the Megatron index is cut off: found {size} bytes, expected at least {HEADER_BYTES}"
            );
            return Err(refuse(size, detail));
        }
        let header: [u8; HEADER_BYTES as usize] = index.bytes(0)?;
        if !header.starts_with(MAGIC) {
            let detail = "not a Megatron index: it does not begin with MMIDIDX, which was expected".into();
            return Err(refuse(0, detail));
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        match number(9) {
            1 => {}
            version @ (2 | 3) => {
                let detail = format!(
                    "version {version} of the index is Fast-LLM's own; expected Megatron's version 1; \
                     convert it with Fast-LLM"
                );
                return Err(refuse(9, detail));
            }
            version => {
                return Err(refuse(9, format!("version {version} of a Megatron index; expected 1")));
            }
        }
        let dtype = dtype_of_code(header[17]).map_err(|detail| refuse(17, detail))?;
        let (sequences, entries) = (number(18), number(26));
        if entries == 0 {
            let detail = "the index has no document entries; expected at least one".into();
            return Err(refuse(26, detail));
        }
        let arrays = sequences.checked_mul(12).zip(entries.checked_mul(8));
        let expected = arrays
            .and_then(|(sequences, documents)| sequences.checked_add(documents)?.checked_add(HEADER_BYTES));
        // Only the size shows whether the index has the modes of a multimodal data set.
        let with_modes = expected.and_then(|expected| expected.checked_add(sequences));
        if expected == Some(size) || with_modes == Some(size) {
            return Ok(Self { dtype, sequences, entries });
        }
        let expected = expected.map_or("more than 2^64".to_owned(), |bytes| bytes.to_string());
        let detail = format!(
            "the index says {sequences} sequences and {entries} document entries, which make a file of {expected} \
             bytes (and one more for each sequence if it has modes), but it has {size}; write it again"
        );
        Err(refuse(18, detail))
    }
}

impl DocumentSequences {
    /// Returns the offset of the array. The header's numbers were checked against the size of the index.
    fn offset(&self) -> u64 {
        HEADER_BYTES + 12 * self.sequences.count
    }

    /// Checks the first and the last entry, which immediately reveal an index of another file.
    fn check_ends(&self, index: &FileReader<'_>) -> Result<()> {
        for (number, expected) in [(0, 0), (self.count(), self.sequences.count)] {
            let offset = self.offset() + 8 * number;
            let found = i64::from_le_bytes(index.bytes(offset)?);
            if u64::try_from(found) != Ok(expected) {
                return Err(unexpected(index, offset, DOCUMENT, (number, found), &expected.to_string()));
            }
        }
        Ok(())
    }
}

impl DocumentTable for DocumentSequences {
    fn count(&self) -> u64 {
        self.entries - 1
    }

    fn check(&self, index: &FileReader<'_>) -> Result<()> {
        check_ascending(index, self.offset(), self.entries, (Some(0), self.sequences.count), DOCUMENT)
    }

    fn start(&self, index: &FileReader<'_>, number: u64) -> Result<u64> {
        let offset = self.offset() + 8 * number;
        let sequence = u64::from_le_bytes(index.bytes(offset)?);
        let Some(left) = self.sequences.count.checked_sub(sequence) else {
            let expected = format!("at most {}", self.sequences.count);
            return Err(unexpected(index, offset, DOCUMENT, (number, sequence.cast_signed()), &expected));
        };
        match &self.checked.order {
            _ if left == 0 => Ok(self.tokens),
            Some(order) => order.start(index, sequence),
            None => self.sequences.first_token(index, sequence),
        }
    }
}

/// Type codes that Megatron writes.
pub const CODES: &[(u8, Dtype)] =
    &[(1, Dtype::U8), (2, Dtype::I8), (3, Dtype::I16), (4, Dtype::I32), (5, Dtype::I64), (8, Dtype::U16)];
/// Type codes that only DeepSpeed writes.
const DEEPSPEED_CODES: &[(u8, Dtype)] = &[(9, Dtype::U32), (10, Dtype::U64)];

fn dtype_of_code(code: u8) -> Result<Dtype, String> {
    match CODES.iter().chain(DEEPSPEED_CODES).find(|(known, _)| *known == code) {
        Some(&(_, dtype)) => Ok(dtype),
        None if matches!(code, 6 | 7) => Err(format!(
            "the index says floating-point data (type code {code}, float32 or float64 depending on what wrote \
             it); tokens are integers, expected code 1 to 5 or 8 to 10"
        )),
        None => Err(format!("type code {code} in the Megatron index; expected 1 to 5 or 8 to 10")),
    }
}

fn refuse(index: &FileReader<'_>, offset: u64, detail: String) -> Error {
    Error::format(index.opened.path(), offset, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::format::layout::token_dtype_name;

    #[test]
    fn a_pair_is_named_by_either_file_or_by_the_stem() {
        let expected = (PathBuf::from("a/b.idx"), PathBuf::from("a/b.bin"));
        for name in ["a/b.idx", "a/b.bin", "a/b"] {
            assert_eq!(paths(Path::new(name)), expected, "{name}");
        }
        assert_eq!(paths(Path::new("v1.5_text")).0, Path::new("v1.5_text.idx"));
    }

    #[test]
    fn codes_of_floats_and_unknown_codes_are_rejected() {
        let known: Vec<_> =
            (0..=12).filter_map(|code| dtype_of_code(code).ok().map(token_dtype_name)).collect();
        assert_eq!(known, ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]);
    }
}
