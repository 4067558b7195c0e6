//! Hints for a file without a valid safetensors header, from its first bytes.

use std::borrow::Cow;
use std::path::Path;

use crate::file_kinds::{Sample, recognise};

const JSON: &str = "this is JSON text; pass an index, whose name ends in .json, to open_checkpoint";
const ONNX: &str = "this is an ONNX model; fetch the model's safetensors files";
const TOKENS: &str = "if it is a token file, open it with open_tokens";
const EMPTY: &str = "the file is empty: its download or copy did not finish; fetch it again";

/// Suffixes of token files. Raw tokens have no signature.
const TOKEN_SUFFIXES: [&str; 10] = ["bin", "npy", "ds", "idx", "raw", "tok", "tokens", "u16", "u32", "mds"];

/// Returns whether a path has the name of a token file.
pub fn is_named_like_tokens(path: &Path) -> bool {
    path.extension()
        .is_some_and(|suffix| TOKEN_SUFFIXES.iter().any(|known| suffix.eq_ignore_ascii_case(known)))
}

/// Returns a sentence with the kind of the file and the remedy, if its first bytes or its name reveal the kind.
pub fn named(path: &Path, first: &[u8], size: u64) -> Option<Cow<'static, str>> {
    if first.is_empty() {
        return Some(EMPTY.into());
    }
    // It has the JSON of a header, so it is a broken safetensors file.
    if first.get(8..).is_some_and(|json| json.trim_ascii_start().starts_with(b"{")) {
        return None;
    }
    match first {
        [b'{', ..] => return Some(JSON.into()),
        // In protobuf, field 1 (`ir_version`), then one of the fields that exporters write after it.
        [0x08, 1..=20, 0x12 | 0x1a | 0x22 | 0x3a | 0x42, ..] => return Some(ONNX.into()),
        _ => {}
    }
    match recognise(&Sample { first, size, last: &|| None }) {
        Some(kind) => Some(format!("this is {}; {}", kind.name, kind.for_weights).into()),
        None => is_named_like_tokens(path).then_some(TOKENS.into()),
    }
}
