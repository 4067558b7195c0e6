//! Recognises kinds of files that people mistakenly pass in place of token files or safetensors files.
//!
//! The file's first 4 KiB reveal its kind. If the signature is weak, the last byte must match too: for example, the
//! first three bytes of a pickle can be tokens.

/// First bytes of a file for [`recognise`]. A shorter sample finds fewer kinds.
pub const SAMPLE_BYTES: usize = 4096;

/// Shorter text may be tokens by chance. So may text with fewer distinct bytes, for example of a single token.
const MIN_TEXT_BYTES: usize = 32;
const MIN_TEXT_ALPHABET: usize = 8;

/// The last byte of a pickle: the opcode `STOP`.
const PICKLE_STOP: u8 = b'.';

/// A kind of file that was expected to be something else, for example a safetensors file in place of tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct FileKind {
    /// The name with its article, for example "a zip archive".
    pub name: &'static str,
    /// The remedy for a caller who expects tokens.
    pub for_tokens: &'static str,
    /// The remedy for a caller who expects weights.
    pub for_weights: &'static str,
}

/// The bytes of a file that reveal its kind.
pub struct Sample<'a> {
    pub first: &'a [u8],
    /// The size of the file.
    pub size: u64,
    /// Reads the last byte of the file; `None` if it is unknown.
    pub last: &'a dyn Fn() -> Option<u8>,
}

enum Signature {
    /// Bytes at an offset.
    At(usize, &'static [u8]),
    Like(fn(&Sample<'_>) -> bool),
}

use Signature::{At, Like};

const DECOMPRESS: &str = "decompress it first";
const HOLDS_WEIGHTS: &str = "it holds weights, not tokens";
const HOLDS_TOKENS: &str = "it holds tokens, not weights; open it with open_tokens";
const HOLDS_DATA: &str = "it holds data, not weights";
const FETCH_SAFETENSORS: &str = "fetch the model's safetensors files";
const TORCH_SAVE: &str = "torch.save writes such files (.pt, .pth, .bin): load it with torch.load and save its tensors with \
     pagestream.safetensors.torch.save_file";
const TOKENIZE: &str = "tokenize its text with `pagestream tokenize`";
const DOWNLOAD: &str = "servers send one for an error or a login: download the file itself";

/// Any text. As bytes, it is a stream of 8-bit tokens.
pub const TEXT: FileKind =
    FileKind { name: "a text file", for_tokens: TOKENIZE, for_weights: "fetch the file again" };

const fn kind(name: &'static str, for_tokens: &'static str, for_weights: &'static str) -> FileKind {
    FileKind { name, for_tokens, for_weights }
}

/// The first signature that matches names the kind.
const KINDS: &[(Signature, FileKind)] = &[
    (
        At(0, b"version https://git-lfs"),
        kind(
            "a git-LFS pointer",
            "fetch the file that it stands for with `git lfs pull`",
            "fetch the file that it stands for with `git lfs pull`",
        ),
    ),
    (At(0, b"PK\x03\x04"), kind("a zip archive", "extract it first (.npz)", TORCH_SAVE)),
    // The third byte is the compression method. gzip has only one.
    (At(0, b"\x1f\x8b\x08"), kind("a gzip file", DECOMPRESS, DECOMPRESS)),
    (At(0, b"\x28\xb5\x2f\xfd"), kind("a Zstandard file", DECOMPRESS, DECOMPRESS)),
    (At(0, b"\xfd7zXZ\0"), kind("an xz file", DECOMPRESS, DECOMPRESS)),
    (At(4, b"1AY&SY"), kind("a bzip2 file", DECOMPRESS, DECOMPRESS)),
    (At(0, b"\x04\x22\x4d\x18"), kind("an LZ4 file", DECOMPRESS, DECOMPRESS)),
    (At(0, b"7z\xbc\xaf\x27\x1c"), kind("a 7z archive", DECOMPRESS, DECOMPRESS)),
    (At(257, b"ustar"), kind("a tar archive", "extract it first", "extract it first")),
    (At(0, b"GGUF"), kind("a GGUF file of llama.cpp", HOLDS_WEIGHTS, FETCH_SAFETENSORS)),
    (At(0, b"\x89HDF\r\n\x1a\n"), kind("an HDF5 file", "save its tokens as a flat file", FETCH_SAFETENSORS)),
    (
        Like(is_safetensors),
        kind(
            "a safetensors file of weights",
            "open it with open_checkpoint or safe_open",
            "its header is damaged",
        ),
    ),
    (
        At(0, b"\x93NUMPY"),
        kind(
            "a NumPy file",
            "open it with format=\"npy\"",
            "load it with numpy.load, or with open_tokens if it holds tokens",
        ),
    ),
    (At(0, b"PAR1"), kind("a Parquet file", "tokenize its text, or save its column of tokens", HOLDS_DATA)),
    (At(0, b"ARROW1\0\0"), kind("an Arrow file", "save its column of tokens", HOLDS_DATA)),
    (
        At(0, b"MMIDIDX\0\0"),
        kind("a Megatron index", "rename it to end in .idx, with its .bin next to it", HOLDS_TOKENS),
    ),
    (
        At(0, b"TNTIDX\0\0"),
        kind(
            "an index of fairseq or gpt-neox",
            "convert the data set to Megatron's format",
            "it holds tokens, not weights",
        ),
    ),
    (
        At(0, &20_240_522_i32.to_le_bytes()),
        kind("an llm.c evaluation file", "give a file of training tokens", "it holds tokens, not weights"),
    ),
    (At(0, &20_240_326_i32.to_le_bytes()), kind("a model of llm.c", HOLDS_WEIGHTS, FETCH_SAFETENSORS)),
    (At(0, &20_240_327_i32.to_le_bytes()), kind("a debug state of llm.c", HOLDS_WEIGHTS, FETCH_SAFETENSORS)),
    (
        At(0, &20_240_328_i32.to_le_bytes()),
        kind("a tokenizer of llm.c", "give a file of training tokens", HOLDS_DATA),
    ),
    (
        At(0, b"LITPKDS"),
        kind(
            "a packed data set of lit-gpt",
            "export its tokens to a flat file",
            "it holds tokens, not weights",
        ),
    ),
    (
        Like(is_modalities),
        kind(
            "a packed data set of Modalities (.pbin)",
            "export its tokens to a flat file",
            "it holds tokens, not weights",
        ),
    ),
    (At(0, b"SQLite format 3\0"), kind("an SQLite database", "export its tokens to a flat file", HOLDS_DATA)),
    (At(0, b"Obj\x01"), kind("an Avro file", "tokenize its text, or save its column of tokens", HOLDS_DATA)),
    (At(0, b"MATLAB 5.0 MAT-file"), kind("a MATLAB file", "save its tokens as a flat file", HOLDS_DATA)),
    (At(0, b"tjgg"), kind("a GGML file of llama.cpp", HOLDS_WEIGHTS, FETCH_SAFETENSORS)),
    (At(0, b"lmgg"), kind("a GGML file of whisper.cpp", HOLDS_WEIGHTS, FETCH_SAFETENSORS)),
    (At(0, b"\x7fELF"), kind("a program or a library", "give a token file", HOLDS_DATA)),
    (At(0, b"\x89PNG\r\n\x1a\n"), kind("a PNG image", "save its tokens as a flat file", HOLDS_DATA)),
    (At(0, b"%PDF-"), kind("a PDF file", "tokenize its text", HOLDS_DATA)),
    // The magic number of torch.save before version 1.6. Storages follow the pickles.
    (
        At(0, b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."),
        kind("a Python pickle of torch.save", HOLDS_WEIGHTS, TORCH_SAVE),
    ),
    (Like(is_pickle), kind("a Python pickle", "save its tokens as a flat file", TORCH_SAVE)),
    (Like(is_utf16), kind("UTF-16 text", TOKENIZE, "fetch the file again")),
    (Like(is_html), kind("an HTML page", DOWNLOAD, DOWNLOAD)),
    (
        Like(is_json),
        kind("JSON text", TOKENIZE, "pass an index, whose name ends in .json, to open_checkpoint"),
    ),
    (Like(is_text), TEXT),
];

/// Returns the kind of a file, if its bytes reveal it.
pub fn recognise(sample: &Sample<'_>) -> Option<&'static FileKind> {
    let matches = |signature: &Signature| match signature {
        At(offset, bytes) => sample.first.get(*offset..).is_some_and(|rest| rest.starts_with(bytes)),
        Like(is_like) => is_like(sample),
    };
    KINDS.iter().find(|(signature, _)| matches(signature)).map(|(_, kind)| kind)
}

/// Matches a length field followed by the JSON of a header.
fn is_safetensors(sample: &Sample<'_>) -> bool {
    let Some((length, json)) = sample.first.split_first_chunk() else { return false };
    let fits = u64::from_le_bytes(*length).checked_add(8).is_some_and(|end| end <= sample.size);
    fits && json.trim_ascii_start().starts_with(b"{") && is_printable(&json[..json.len().min(8)])
}

/// Matches the number of data bytes, the bytes per token, the tokens, and a pickle with the documents.
/// <https://github.com/Modalities/modalities>, `embedded_stream_data.py`.
fn is_modalities(sample: &Sample<'_>) -> bool {
    let Some((length, rest)) = sample.first.split_first_chunk() else { return false };
    let Some((token_bytes, _)) = rest.split_first_chunk() else { return false };
    let (data_bytes, token_bytes) = (u64::from_le_bytes(*length), u32::from_le_bytes(*token_bytes));
    matches!(token_bytes, 1 | 2 | 4)
        && data_bytes.checked_add(12).is_some_and(|end| sample.size / 2 <= end && end < sample.size)
        && (sample.last)() == Some(PICKLE_STOP)
}

/// Matches a pickle protocol, an opcode that can follow it, and the opcode at the end.
fn is_pickle(sample: &Sample<'_>) -> bool {
    matches!(sample.first, [0x80, 2..=5, b'}' | b']' | b'(' | b')' | b'c' | b'X' | b'K' | 0x8a | 0x95, ..])
        && (sample.last)().is_none_or(|last| last == PICKLE_STOP)
}

/// Matches a byte order mark, followed by the zero bytes of Latin letters. The mark alone may be a token.
fn is_utf16(sample: &Sample<'_>) -> bool {
    let Some((mark, units)) = sample.first.split_first_chunk() else { return false };
    let zero = match mark {
        b"\xff\xfe" => 1,
        b"\xfe\xff" => 0,
        _ => return false,
    };
    units.len() >= MIN_TEXT_BYTES
        && units.chunks_exact(2).filter(|unit| unit[zero] == 0).count() > units.len() / 4
}

fn is_html(sample: &Sample<'_>) -> bool {
    let text = without_mark(sample.first).trim_ascii_start();
    let starts = |word: &[u8]| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    [&b"<!doctype"[..], b"<html", b"<head", b"<?xml", b"<!--"].into_iter().any(starts)
}

fn is_json(sample: &Sample<'_>) -> bool {
    matches!(without_mark(sample.first).trim_ascii_start().first(), Some(b'{' | b'[')) && is_text(sample)
}

fn is_text(sample: &Sample<'_>) -> bool {
    let text = &sample.first[..sample.first.len().min(SAMPLE_BYTES)];
    // On tokens, the first check that looks at bytes fails within a few bytes.
    text.len() >= MIN_TEXT_BYTES && is_printable(text) && different_bytes(text) >= MIN_TEXT_ALPHABET
}

fn different_bytes(bytes: &[u8]) -> usize {
    let mut is_used = [false; 256];
    for &byte in bytes {
        is_used[usize::from(byte)] = true;
    }
    is_used.iter().filter(|used| **used).count()
}

/// Returns whether bytes are UTF-8 without control characters. The last character may be incomplete.
fn is_printable(bytes: &[u8]) -> bool {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    text.chars().all(|char| !char.is_control() || matches!(char, '\t' | '\n' | '\r' | '\x0c' | '\x1b'))
}

/// Returns text without a byte order mark.
fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::mix;

    fn name_of(first: &[u8], last: Option<u8>) -> Option<&'static str> {
        let sample = Sample { first, size: first.len() as u64, last: &|| last };
        recognise(&sample).map(|kind| kind.name)
    }

    #[test]
    fn tokens_match_no_kind() {
        // Distributions of ids: uniform over vocabularies of several sizes, and one repeated token.
        for width in [2, 4, 8] {
            for vocabulary in [256_u64, 1 << 12, 50_257, 65_536, 128_256] {
                for seed in 0..200 {
                    let tokens = (0..2048).map(|index| mix(seed << 32 | index) % vocabulary);
                    let bytes: Vec<u8> =
                        tokens.flat_map(|token| token.to_le_bytes().into_iter().take(width)).collect();
                    assert_eq!(name_of(&bytes, Some(b'.')), None, "{width} bytes, {vocabulary}, {seed}");
                }
            }
        }
        for token in 0..=u16::MAX {
            assert_eq!(name_of(&token.to_le_bytes().repeat(64), Some(b'.')), None, "token {token}");
        }
    }

    #[test]
    fn text_is_utf8_with_a_minimum_length_and_alphabet() {
        let text = "Größe: 12 µm, ≥ 3 Zeilen\r\n".repeat(4);
        for len in MIN_TEXT_BYTES..text.len() {
            assert_eq!(name_of(&text.as_bytes()[..len], None), Some(TEXT.name), "{len} bytes");
        }
        assert_eq!(name_of(&text.as_bytes()[..MIN_TEXT_BYTES - 1], None), None);
        assert_eq!(name_of(&b"abcdefg".repeat(99), None), None);
        assert_eq!(name_of(&[text.as_bytes(), b"\0"].concat(), None), None);
        assert_eq!(name_of(&[text.as_bytes(), b"\xff "].concat(), None), None);
    }

    #[test]
    fn weak_signatures_need_the_last_byte() {
        let pickle = [0x80, 4, 0x95, 0, 0, 0, 0, 0];
        assert_eq!(name_of(&pickle, Some(PICKLE_STOP)), Some("a Python pickle"));
        assert_eq!(name_of(&pickle, None), Some("a Python pickle"));
        assert_eq!(name_of(&pickle, Some(0)), None);
        let packed = [&8_u64.to_le_bytes()[..], &2_u32.to_le_bytes(), &[7; 8], b"\x80."].concat();
        assert_eq!(name_of(&packed, Some(PICKLE_STOP)), Some("a packed data set of Modalities (.pbin)"));
        assert_eq!(name_of(&packed, Some(0)), None);
        assert_eq!(name_of(&packed, None), None);
    }
}
