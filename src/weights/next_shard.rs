//! Finds the shard after a given one, by its name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns the path of the next shard: `model-00002-of-00004.safetensors` after `model-00001-of-00004.safetensors`,
/// `consolidated.01.safetensors` after `consolidated.00.safetensors`. `None` for the last of a known number, and for a
/// name without a number. It does not check whether the file exists.
pub fn next_shard(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.as_bytes();
    let stem = name.strip_suffix(b".safetensors")?;
    let all = numbers(stem);
    let (last, number) = (all.last()?, all.len().checked_sub(2).map(|place| &all[place]));
    let (number, total) = match number {
        Some(number) if &stem[number.end..last.start] == b"-of-" => {
            (number, Some(value(&stem[last.clone()])?))
        }
        _ => (last, None),
    };
    let next = value(&stem[number.clone()])?.checked_add(1)?;
    if total.is_some_and(|total| next > total) {
        return None;
    }
    let digits = format!("{next:0width$}", width = number.len());
    let name = [&name[..number.start], digits.as_bytes(), &name[number.end..]].concat();
    Some(path.with_file_name(OsStr::from_bytes(&name)))
}

/// Returns the ranges of the runs of digits.
fn numbers(text: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for place in (0..text.len()).filter(|&place| text[place].is_ascii_digit()) {
        match found.last_mut().filter(|range| range.end == place) {
            Some(range) => range.end += 1,
            None => found.push(place..place + 1),
        }
    }
    found
}

fn value(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_name_has_the_next_number() {
        let next = |name: &str| next_shard(Path::new(name)).map(|path| path.display().to_string());
        let cases = [
            ("a/model-00001-of-00004.safetensors", Some("a/model-00002-of-00004.safetensors")),
            ("model-00009-of-00010.safetensors", Some("model-00010-of-00010.safetensors")),
            ("model-00004-of-00004.safetensors", None),
            ("qwen2.5-7b-1-of-3.safetensors", Some("qwen2.5-7b-2-of-3.safetensors")),
            ("consolidated.00.safetensors", Some("consolidated.01.safetensors")),
            ("part9.safetensors", Some("part10.safetensors")),
            ("model.safetensors", None),
            ("model-00001-of-00004.bin", None),
            ("99999999999999999999.safetensors", None),
            ("18446744073709551615.safetensors", None),
            ("..", None),
        ];
        for (name, expected) in cases {
            assert_eq!(next(name).as_deref(), expected, "{name}");
        }
    }
}
