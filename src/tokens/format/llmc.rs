//! llm.c and modded-nanogpt (<https://github.com/karpathy/llm.c>, `dev/data/data_common.py`): 256 words of 32 bits,
//! followed by the tokens. The first three words are the magic number, the version and the number of tokens. The other
//! words are ignored, because some writers leave them uninitialised.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::Opened;

use super::layout::{Format, TokenLayout, agree_dtype, item_bytes, read_prefix, token_dtype_name};

const HEADER_BYTES: u64 = 1024;

/// Magic number, version, type of the tokens.
pub const KINDS: &[(i32, i32, Dtype)] = &[(20_240_520, 1, Dtype::U16), (20_240_801, 7, Dtype::U32)];

/// Returns whether a file that begins with these bytes claims this format.
pub fn claims(prefix: &[u8]) -> bool {
    word(prefix, 0).is_some_and(|magic| KINDS.iter().any(|kind| kind.0 == magic))
}

/// Finds the layout of a file from its header.
pub fn layout(opened: &Opened, dtype: Option<Dtype>) -> Result<TokenLayout> {
    let refuse = |offset: u64, detail: String| Error::format(opened.path(), offset, detail);
    let raw = "; if it is a raw token stream all the same, open_tokens reads it with format=\"raw\"";
    let prefix = read_prefix(opened, 12)?;
    let Some(&(magic, version, found)) = KINDS.iter().find(|(magic, _, _)| word(&prefix, 0) == Some(*magic))
    else {
        let begins = word(&prefix, 0).map_or("fewer than 4 bytes".into(), |magic| magic.to_string());
        let detail = format!(
            "format=\"llmc\" was asked for, but the file begins with {begins}; expected 20240520 or 20240801"
        );
        return Err(refuse(0, detail));
    };
    if opened.size() < HEADER_BYTES {
        let detail = format!(
            "the llm.c header is cut off: the file has {} bytes, expected at least {HEADER_BYTES}{raw}",
            opened.size()
        );
        return Err(refuse(opened.size(), detail));
    }
    if word(&prefix, 4) != Some(version) {
        let detail = format!(
            "version {} of an llm.c token shard with magic {magic}; expected version {version}{raw}",
            word(&prefix, 4).unwrap_or_default()
        );
        return Err(refuse(4, detail));
    }
    let count = word(&prefix, 8).unwrap_or_default();
    let Ok(tokens) = u64::try_from(count) else {
        let detail = format!("the llm.c header says {count} tokens, expected 0 to {}{raw}", i32::MAX);
        return Err(refuse(8, detail));
    };
    let expected = HEADER_BYTES + tokens * item_bytes(found);
    if opened.size() != expected {
        let detail = format!(
            "the llm.c header says {tokens} tokens of type {}, which make a file of {expected} bytes, but it \
             has {}; write it again{raw}",
            token_dtype_name(found),
            opened.size()
        );
        return Err(refuse(8, detail));
    }
    agree_dtype(opened.path(), 0, found, dtype)?;
    Ok(TokenLayout { format: Format::Llmc, dtype: found, data_offset_bytes: HEADER_BYTES, tokens })
}

fn word(bytes: &[u8], offset: usize) -> Option<i32> {
    let bytes = bytes.get(offset..offset + 4)?;
    Some(i32::from_le_bytes(bytes.try_into().ok()?))
}
