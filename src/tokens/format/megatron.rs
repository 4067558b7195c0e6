//! Megatron's `.idx` and `.bin` (<https://github.com/NVIDIA/Megatron-LM>,
//! `megatron/core/datasets/indexed_dataset.py`), version 1. The `.bin` is tokens and nothing else. The
//! `.idx`: magic, version, type, S, D, then lengths `int32[S]`, byte pointers `int64[S]`, documents as
//! numbers of sequences `int64[D]`, and `int8[S]` modes in multimodal files. No array is aligned.
//!
//! Opening checks the size and the ends of the arrays. Arrays can have billions of entries, so an entry in the middle is
//! checked when it is read.

use std::path::{Path, PathBuf};

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::{FileReader, MappedFile};

use super::documents::DocumentTable;
use super::layout::{Format, Opener, TokenFile, TokenLayout, agree_dtype, item_bytes, with_suffix};

pub const MAGIC: &[u8] = b"MMIDIDX\0\0";

const HEADER_BYTES: u64 = 34;

/// The arrays of an index: their places in the file, and their lengths.
#[derive(Debug)]
struct SequenceTables {
    sequences: u64,
    /// Entries of the array of documents: one more than documents.
    entries: u64,
    item_bytes: u64,
    tokens: u64,
}

/// Returns the paths of index and token file, from either path or from their common stem, for example `corpus`.
pub fn paths(path: &Path) -> (PathBuf, PathBuf) {
    let stem = match path.extension().and_then(|extension| extension.to_str()) {
        Some("idx" | "bin") => path.with_extension(""),
        _ => path.to_owned(),
    };
    (with_suffix(&stem, ".idx"), with_suffix(&stem, ".bin"))
}

/// Returns whether a file has the name that Megatron's `preprocess_data.py` gives: `<prefix>_<key>_document.bin`.
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
    let mut tables = SequenceTables { sequences: 0, entries: 0, item_bytes: 0, tokens: 0 };
    let reader = opened.exact_reader();
    let found = tables.read_header(&reader)?;
    agree_dtype(index.path(), 17, found, dtype)?;
    let data = how.open_if_there(&data_path)?.ok_or_else(|| {
        let detail = format!(
            "the Megatron index has no token file: {} does not exist; expected both next to each other",
            data_path.display()
        );
        Error::format(index.path(), None, detail)
    })?;
    tables.tokens = tables.check_ends(&reader, &data)?;
    reader.finish()?;
    let layout =
        TokenLayout { format: Format::Megatron, dtype: found, data_offset_bytes: 0, tokens: tables.tokens };
    Ok(TokenFile { file: data, layout, documents: Some((Box::new(tables), index)) })
}

impl SequenceTables {
    fn read_header(&mut self, index: &FileReader<'_>) -> Result<Dtype> {
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
        (self.sequences, self.entries) = (number(18), number(26));
        self.item_bytes = item_bytes(dtype);
        let arrays = self.sequences.checked_mul(12).zip(self.entries.checked_mul(8));
        let expected = arrays
            .and_then(|(sequences, documents)| sequences.checked_add(documents)?.checked_add(HEADER_BYTES));
        // Only the size shows whether the modes of a multimodal data set are there.
        let with_modes = expected.and_then(|expected| expected.checked_add(self.sequences));
        if expected == Some(size) || with_modes == Some(size) {
            return Ok(dtype);
        }
        let expected = expected.map_or("more than 2^64".to_owned(), |bytes| bytes.to_string());
        let detail = format!(
            "the index says {} sequences and {} document entries, which make a file of {expected} bytes \
             (and one more for each sequence if it has modes), but it has {size}; write it again",
            self.sequences, self.entries
        );
        Err(refuse(18, detail))
    }

    /// Checks the first and the last entry of each array against each other and the token file; returns the
    /// number of tokens.
    fn check_ends(&self, index: &FileReader<'_>, data: &MappedFile) -> Result<u64> {
        let refuse = |offset, detail| refuse(index, offset, detail);
        let bytes = data.size();
        let end = match self.sequences.checked_sub(1) {
            None => 0,
            Some(last) => {
                let first = self.pointer(index, 0)?;
                if first != 0 {
                    let detail = format!("the first sequence begins at byte {first}, expected 0");
                    return Err(refuse(self.pointer_offset(0), detail));
                }
                self.end_of(index, last)?
            }
        };
        if end != bytes {
            let detail = format!(
                "the index ends at byte {end} of the token file, but {} has {bytes} bytes; they do not belong \
                 together, or one was cut",
                data.path().display()
            );
            return Err(refuse(HEADER_BYTES, detail));
        }
        // Sequences end at the borders of tokens; the last one is left to check.
        if !bytes.is_multiple_of(self.item_bytes) {
            let detail = format!(
                "the token file has {bytes} bytes, expected a whole number of tokens of {} bytes",
                self.item_bytes
            );
            return Err(refuse(HEADER_BYTES, detail));
        }
        let Some(last) = self.entries.checked_sub(1) else {
            let detail = "the index has no document entries; expected at least one".into();
            return Err(refuse(26, detail));
        };
        for (entry, expected) in [(0, 0), (last, self.sequences)] {
            let found = self.sequence_of(index, entry)?;
            if found != expected {
                let detail = format!("document entry {entry} is sequence {found}, expected {expected}");
                return Err(refuse(self.entry_offset(entry), detail));
            }
        }
        Ok(bytes / self.item_bytes)
    }

    fn sequence_of(&self, index: &FileReader<'_>, entry: u64) -> Result<u64> {
        let offset = self.entry_offset(entry);
        let found = i64::from_le_bytes(index.bytes(offset)?);
        u64::try_from(found).ok().filter(|&sequence| sequence <= self.sequences).ok_or_else(|| {
            let detail =
                format!("document entry {entry} is sequence {found}, expected 0 to {}", self.sequences);
            refuse(index, offset, detail)
        })
    }

    fn pointer(&self, index: &FileReader<'_>, sequence: u64) -> Result<u64> {
        let offset = self.pointer_offset(sequence);
        let found = i64::from_le_bytes(index.bytes(offset)?);
        u64::try_from(found).map_err(|_| {
            refuse(index, offset, format!("sequence {sequence} begins at byte {found}, expected 0 or more"))
        })
    }

    /// The byte of the token file where a sequence ends.
    fn end_of(&self, index: &FileReader<'_>, sequence: u64) -> Result<u64> {
        let offset = HEADER_BYTES + 4 * sequence;
        let length = i32::from_le_bytes(index.bytes(offset)?);
        let pointer = self.pointer(index, sequence)?;
        u64::try_from(length).ok().and_then(|length| pointer.checked_add(length * self.item_bytes)).ok_or_else(
            || {
                let detail = format!(
                    "sequence {sequence} has {length} tokens from byte {pointer} on; expected a length of 0 or \
                     more that ends inside the token file"
                );
                refuse(index, offset, detail)
            },
        )
    }

    // No overflow below: the header's numbers were checked against the file's size.

    fn pointer_offset(&self, sequence: u64) -> u64 {
        HEADER_BYTES + 4 * self.sequences + 8 * sequence
    }

    fn entry_offset(&self, entry: u64) -> u64 {
        HEADER_BYTES + 12 * self.sequences + 8 * entry
    }
}

impl DocumentTable for SequenceTables {
    fn count(&self) -> u64 {
        self.entries.saturating_sub(1)
    }

    /// The sequence of the document must begin where the one before it ends.
    fn start(&self, index: &FileReader<'_>, number: u64) -> Result<u64> {
        let sequence = self.sequence_of(index, number)?;
        if sequence == self.sequences {
            return Ok(self.tokens);
        }
        let pointer = self.pointer(index, sequence)?;
        let expected = match sequence.checked_sub(1) {
            None => 0,
            Some(before) => self.end_of(index, before)?,
        };
        if pointer != expected || !pointer.is_multiple_of(self.item_bytes) {
            let detail = format!(
                "sequence {sequence} begins at byte {pointer} of the token file, expected {expected}, where \
                 the one before it ends; old builders wrote such pointers with NumPy 2, build the index again"
            );
            return Err(refuse(index, self.pointer_offset(sequence), detail));
        }
        Ok(pointer / self.item_bytes)
    }
}

/// Type codes that Megatron writes.
pub const CODES: &[(u8, Dtype)] =
    &[(1, Dtype::U8), (2, Dtype::I8), (3, Dtype::I16), (4, Dtype::I32), (5, Dtype::I64), (8, Dtype::U16)];
/// Type codes of DeepSpeed alone.
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
    fn codes_of_floats_and_unknown_ones_are_refused() {
        let known: Vec<_> =
            (0..=12).filter_map(|code| dtype_of_code(code).ok().map(token_dtype_name)).collect();
        assert_eq!(known, ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]);
    }
}
