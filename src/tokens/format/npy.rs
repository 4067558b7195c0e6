//! NumPy's `.npy` (<https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>): the magic number, the
//! version, the length of a header, and the header, which is a Python dict literal with `descr`, `fortran_order` and
//! `shape`. The parser accepts only this; it evaluates and unpickles nothing.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::Opened;

use super::layout::{
    Format, TOKEN_DTYPES, TokenLayout, agree_dtype, item_bytes, read_prefix, token_dtype_name,
};

pub const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy's own limit (`max_header_size`).
const MAX_HEADER_BYTES: u64 = 10_000;

/// Finds the layout of a file from its header.
pub fn layout(opened: &Opened, dtype: Option<Dtype>) -> Result<TokenLayout> {
    let refuse = |offset: u64, detail: String| Error::format(opened.path(), offset, detail);
    let prefix = read_prefix(opened, 12)?;
    let (length_bytes, header_bytes) = match prefix.get(6..) {
        Some(&[1, _, a, b, ..]) => (2, u64::from(u16::from_le_bytes([a, b]))),
        Some(&[2 | 3, _, a, b, c, d]) => (4, u64::from(u32::from_le_bytes([a, b, c, d]))),
        Some(&[1..=3, ..] | &[]) | None => return Err(refuse(6, "the .npy header is cut off".into())),
        Some(&[version, ..]) => {
            return Err(refuse(6, format!("version {version} of .npy; 1, 2 and 3 are known")));
        }
    };
    if header_bytes > MAX_HEADER_BYTES {
        let detail =
            format!("the .npy header claims {header_bytes} bytes; at most {MAX_HEADER_BYTES} are read");
        return Err(refuse(8, detail));
    }
    let data_offset_bytes = 8 + length_bytes + header_bytes;
    let bytes = read_prefix(opened, data_offset_bytes)?;
    if (bytes.len() as u64) < data_offset_bytes {
        return Err(refuse(bytes.len() as u64, "the .npy header is cut off".into()));
    }
    let text = std::str::from_utf8(&bytes[8 + length_bytes as usize..])
        .map_err(|_| refuse(8 + length_bytes, "the .npy header is not text".into()))?;
    let header = NpyHeader::parse(text).ok_or_else(|| {
        refuse(8 + length_bytes, format!("the .npy header cannot be understood: {}", text.trim_end()))
    })?;
    let found = header.token_dtype().map_err(|detail| refuse(8 + length_bytes, detail))?;
    agree_dtype(opened.path(), 8 + length_bytes, found, dtype)?;
    let &[tokens] = header.shape.as_slice() else {
        let detail = format!(
            "the array has the shape {:?}; tokens are one-dimensional (save array.reshape(-1))",
            header.shape
        );
        return Err(refuse(8 + length_bytes, detail));
    };
    let expected =
        tokens.checked_mul(item_bytes(found)).and_then(|bytes| bytes.checked_add(data_offset_bytes));
    if expected != Some(opened.size()) {
        let expected = expected.map_or("more than 2^64".to_owned(), |bytes| bytes.to_string());
        let detail = format!(
            "{tokens} tokens of type {} make a file of {expected} bytes, but it has {}",
            token_dtype_name(found),
            opened.size()
        );
        return Err(refuse(8 + length_bytes, detail));
    }
    Ok(TokenLayout { format: Format::Npy, dtype: found, data_offset_bytes, tokens })
}

#[derive(Debug, PartialEq, Eq)]
struct NpyHeader {
    /// `None` for a list, which denotes a structured type.
    descr: Option<String>,
    shape: Vec<u64>,
}

impl NpyHeader {
    /// Parses `{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }`, with keys in any order.
    fn parse(text: &str) -> Option<Self> {
        let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim_start();
        let (mut descr, mut order, mut shape) = (None, None, None);
        while !rest.is_empty() {
            let (key, after) = quoted(rest)?;
            let value = after.trim_start().strip_prefix(':')?.trim_start();
            rest = match key {
                "descr" if value.starts_with('[') => {
                    descr = Some(None);
                    value.get(value.rfind(']')? + 1..)?
                }
                "descr" => {
                    let (name, after) = quoted(value)?;
                    descr = Some(Some(name.to_owned()));
                    after
                }
                "fortran_order" => {
                    order = Some(());
                    value.strip_prefix("False").or_else(|| value.strip_prefix("True"))?
                }
                "shape" => {
                    let (inside, after) = value.strip_prefix('(')?.split_once(')')?;
                    shape = Some(dimensions(inside)?);
                    after
                }
                _ => return None,
            };
            rest = rest.trim_start();
            rest = rest.strip_prefix(',').map_or(rest, str::trim_start);
        }
        order?;
        Some(Self { descr: descr?, shape: shape? })
    }

    fn token_dtype(&self) -> std::result::Result<Dtype, String> {
        let Some(descr) = &self.descr else {
            return Err("the array has a structured type; tokens are integers".into());
        };
        match TOKEN_DTYPES.iter().find(|known| known.1 == descr) {
            Some(known) => Ok(known.2),
            None if descr.starts_with('>') => {
                Err(format!("the array is big-endian ({descr}); save it as little-endian"))
            }
            None => Err(format!("the array is of type {descr:?}; tokens are integers of 1, 2, 4 or 8 bytes")),
        }
    }
}

/// Parses a quoted word without escapes, and returns it with the rest of the text.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|&first| first == '\'' || first == '"')?;
    text[1..].split_once(quote).filter(|(word, _)| !word.contains('\\'))
}

/// Parses `3, 4` or `3,` or nothing. Python 2 wrote `3L`.
fn dimensions(text: &str) -> Option<Vec<u64>> {
    let mut parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.last() == Some(&"") {
        parts.pop();
    }
    parts.into_iter().map(|part| part.strip_suffix('L').unwrap_or(part).parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_as_numpy_writes_them() {
        let header = |text| NpyHeader::parse(text).map(|header| (header.descr, header.shape));
        let expected = Some((Some("<u2".to_owned()), vec![3]));
        assert_eq!(header("{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }    \n"), expected);
        assert_eq!(header("{\"shape\": (3L,), 'fortran_order': True, 'descr': '<u2'}"), expected);
        assert_eq!(
            header("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (3, 4), }"),
            Some((None, vec![3, 4]))
        );
        assert_eq!(
            header("{'descr': '<u2', 'fortran_order': False, 'shape': (), }"),
            Some((Some("<u2".into()), vec![]))
        );
    }

    #[test]
    fn headers_in_other_forms_are_rejected() {
        for text in [
            "",
            "{",
            "{}",
            "{'descr': '<u2'}",
            "{'descr': '<u2', 'fortran_order': 1, 'shape': (3,)}",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (-3,)}",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (3}",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), 'more': 1}",
            "{'descr': __import__('os'), 'fortran_order': False, 'shape': (3,)}",
            "{'descr': '\\x3cu2', 'fortran_order': False, 'shape': (3,)}",
        ] {
            assert_eq!(NpyHeader::parse(text), None, "{text}");
        }
    }
}
