//! datatrove (<https://github.com/huggingface/datatrove>, `pipeline/tokens/tokenizer.py`): `.ds` contains only tokens.
//! An optional `.ds.index` contains the end of each document in tokens as `u64`. An optional `.ds.metadata` is text:
//! its first line ends in `|` and the bytes per token, and its second line is the number of tokens.
//!
//! A file that was shuffled in chunks also records the ends of chunks, so its `.index` does not purely list documents.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::file_kinds::SAMPLE_BYTES;
use crate::mapped_file::{FileReader, MappedFile, RequestedMode};

use super::checked_index::CheckedIndex;
use super::documents::{DocumentTable, check_ascending};
use super::layout::{
    Format, Opener, TokenFile, TokenIndex, TokenLayout, agree_dtype, read_prefix, token_dtype_name,
    whole_tokens, with_suffix,
};
use super::width;

/// Maximum size of the metadata; datatrove writes three short lines.
const MAX_METADATA_BYTES: u64 = 64 << 10;

/// The `.index` of a file: the end of each document, in tokens.
#[derive(Debug)]
struct DocumentEnds {
    documents: u64,
    tokens: u64,
}

impl DocumentTable for DocumentEnds {
    fn count(&self) -> u64 {
        self.documents
    }

    fn check(&self, index: &FileReader<'_>) -> Result<()> {
        check_ascending(index, 0, self.documents, (None, self.tokens), "the end of document")
    }

    fn start(&self, index: &FileReader<'_>, number: u64) -> Result<u64> {
        let Some(before) = number.checked_sub(1) else { return Ok(0) };
        let offset = 8 * before;
        let end = u64::from_le_bytes(index.bytes(offset)?);
        if end <= self.tokens {
            return Ok(end);
        }
        let detail = format!(
            "document {before} ends at token {end}, but the file has {} tokens; the index belongs to another \
             file or is damaged",
            self.tokens
        );
        Err(Error::format(index.opened.path(), offset, detail))
    }
}

/// Opens the side files of a `.ds` file, if there are any, and checks that all belong together.
pub fn open(file: MappedFile, dtype: Option<Dtype>, how: Opener<'_>) -> Result<TokenFile> {
    let size = file.size();
    let read = Opener { mode: RequestedMode::Read, ..how };
    let metadata = read.open_if_there(&with_suffix(file.path(), ".metadata"))?;
    let index = how.open_if_there(&with_suffix(file.path(), ".index"))?;
    let claimed = metadata.as_ref().map(Metadata::read).transpose()?.unwrap_or_default();
    let last_end = index.as_ref().map(last_end).transpose()?;
    let found = match (claimed.dtype, last_end, dtype) {
        (Some(found), ..) => found,
        (None, _, Some(asked)) => asked,
        // The index contains the number of tokens, which also gives the size of each token.
        (None, Some(tokens), None) if tokens.checked_mul(4) == Some(size) && size > 0 => Dtype::U32,
        (None, _, None) => Dtype::U16,
    };
    if let Some(metadata) = &metadata {
        agree_dtype(metadata.path(), 0, found, dtype)?;
    }
    let tokens = whole_tokens(file.path(), size, found)?;
    if claimed.dtype.is_none() && index.is_none() {
        let opened = file.opened()?;
        let reader = opened.exact_reader();
        width::check(&reader, &reader.read(0, size.min(SAMPLE_BYTES as u64))?, found)?;
        reader.finish()?;
    }
    let apart = |side: &MappedFile, says: String| {
        let (path, name) = (file.path().display(), token_dtype_name(found));
        let detail = format!(
            "{says}, but {path} has {tokens} of type {name}; they do not belong together, or one was cut, or the \
             dtype is another"
        );
        refuse(side, detail)
    };
    if let Some((metadata, claimed)) = metadata.as_ref().zip(claimed.tokens)
        && claimed != tokens
    {
        return Err(apart(metadata, format!("the metadata says {claimed} tokens")));
    }
    if let Some((index, end)) = index.as_ref().zip(last_end)
        && end != tokens
    {
        return Err(apart(index, format!("the index ends at token {end}")));
    }
    let index = match index {
        None => None,
        Some(file) => {
            let documents = Box::new(DocumentEnds { documents: file.size() / 8, tokens });
            let checked = CheckedIndex::of(&file, size, |_| Ok(None))?;
            Some(TokenIndex { file, documents, checked })
        }
    };
    let layout = TokenLayout { format: Format::Datatrove, dtype: found, data_offset_bytes: 0, tokens };
    Ok(TokenFile { file, layout, index })
}

/// Returns the end of the last document according to the index, or 0 if it lists no document.
fn last_end(index: &MappedFile) -> Result<u64> {
    let size = index.size();
    if !size.is_multiple_of(8) {
        let detail = format!("the index has {size} bytes, expected a whole number of entries of 8 bytes");
        return Err(refuse(index, detail));
    }
    let Some(offset) = size.checked_sub(8) else { return Ok(0) };
    let opened = index.opened()?;
    let reader = opened.exact_reader();
    let end = u64::from_le_bytes(reader.bytes(offset)?);
    reader.finish()?;
    Ok(end)
}

#[derive(Default)]
struct Metadata {
    dtype: Option<Dtype>,
    tokens: Option<u64>,
}

impl Metadata {
    fn read(file: &MappedFile) -> Result<Self> {
        let size = file.size();
        if size > MAX_METADATA_BYTES {
            let detail = format!("the metadata has {size} bytes; expected at most {MAX_METADATA_BYTES}");
            return Err(refuse(file, detail));
        }
        let bytes = read_prefix(&*file.opened()?, size)?;
        let Ok(text) = std::str::from_utf8(&bytes) else {
            return Err(refuse(file, "the metadata is not text, expected three lines of it".into()));
        };
        let mut lines = text.lines();
        let dtype = match lines.next().and_then(|line| line.rsplit_once('|')) {
            Some((_, "2")) => Some(Dtype::U16),
            Some((_, "4")) => Some(Dtype::U32),
            Some((_, size)) => {
                let detail = format!("the metadata says tokens of {size:?} bytes; expected 2 or 4");
                return Err(refuse(file, detail));
            }
            None => None,
        };
        let tokens = match lines.next().map(str::trim) {
            // datatrove writes -1 if it did not count.
            None | Some("-1" | "") => None,
            Some(line) => Some(line.parse().map_err(|_| {
                refuse(
                    file,
                    format!("the second line of the metadata is {line:?}, expected a number of tokens"),
                )
            })?),
        };
        Ok(Self { dtype, tokens })
    }
}

fn refuse(file: &MappedFile, detail: String) -> Error {
    Error::format(file.path(), None, detail)
}
