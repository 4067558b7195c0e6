//! Names of the files that people pass for safetensors files by mistake.

/// How many first bytes [`named`] looks at.
pub const SNIFFED_BYTES: usize = 64;

/// First bytes of a kind of file, what the kind is, and what to do about it.
const KINDS: &[(&[u8], &str)] = &[
    (
        b"version https://git-lfs",
        "this is a git-LFS pointer, not the file that it stands for; fetch that with `git lfs pull`",
    ),
    (
        b"PK\x03\x04",
        "this is a zip archive, as torch.save writes it (.pt, .pth, .bin); load it with torch.load and save its \
         tensors with pagestream.safetensors.torch.save_file",
    ),
    (b"GGUF", "this is a GGUF file, which llama.cpp reads; fetch the model's safetensors files"),
    (b"\x1f\x8b", "this is a gzip file; decompress it first"),
    (b"\x28\xb5\x2f\xfd", "this is a Zstandard file; decompress it first"),
    (b"\x89HDF\r\n", "this is an HDF5 file, as Keras writes it; fetch the model's safetensors files"),
    (b"\x93NUMPY", "this is a NumPy file; load it with numpy.load"),
    (b"{", "this is JSON text; pass an index, whose name ends in .json, to open_checkpoint"),
];
const PICKLE: &str = "this is a Python pickle, as older versions of torch.save write it (.pt, .bin); load it with torch.load \
     and save its tensors with pagestream.safetensors.torch.save_file";
const ONNX: &str = "this is an ONNX model; fetch the model's safetensors files";
const HTML: &str =
    "this is an HTML page, as servers send it for an error or a login; download the file itself";
const EMPTY: &str = "the file is empty: its download or copy did not finish; fetch it again";

/// Returns what a file is that is not a safetensors file, as a sentence, if its first bytes tell.
pub fn named(first: &[u8]) -> Option<&'static str> {
    if first.is_empty() {
        return Some(EMPTY);
    }
    // The JSON of a header: a safetensors file, if a broken one.
    if first.get(8..).is_some_and(|json| json.trim_ascii_start().starts_with(b"{")) {
        return None;
    }
    if let Some((_, text)) = KINDS.iter().find(|(start, _)| first.starts_with(start)) {
        return Some(text);
    }
    match first {
        // A protocol of pickle, and an opcode with which pickles go on.
        [0x80, 2..=5, b'}' | b']' | b'(' | b')' | b'c' | b'X' | b'K' | 0x8a | 0x95, ..] => Some(PICKLE),
        // In protobuf, field 1 (`ir_version`), then one of the fields that exporters write after it.
        [0x08, 1..=20, 0x12 | 0x1a | 0x22 | 0x3a | 0x42, ..] => Some(ONNX),
        _ => is_html(first).then_some(HTML),
    }
}

fn is_html(first: &[u8]) -> bool {
    let text = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first).trim_ascii_start();
    let starts = |word: &[u8]| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    [&b"<!doctype"[..], b"<html", b"<head", b"<?xml", b"<!--"].into_iter().any(starts)
}
