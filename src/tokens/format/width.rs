//! Checks whether the tokens in a file without a header have the requested width.
//!
//! Token files reveal their width. In little-endian `uint32` tokens, every second `uint16` is the upper half of a
//! token. It is nearly always zero, and never above 255, because no vocabulary has 2^24 tokens. In the reverse case,
//! the upper halves of two `uint16` tokens are tokens themselves, and reach as high as the lower halves.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::file_kinds::SAMPLE_BYTES;
use crate::mapped_file::FileReader;

use super::layout::{item_bytes, token_dtype_name};

/// The type proposed for each width: the most common one among writers.
const USUAL_DTYPES: &[Dtype] = &[Dtype::U16, Dtype::U32, Dtype::I64];

/// With fewer values, or fewer distinct values, the width remains unknown.
const MIN_VALUES: usize = 32;
const MIN_DIFFERENT: usize = 8;

/// Returns an error for a file whose tokens have another width than `dtype`. `first` is the beginning of the file.
///
/// The beginning is nearly always enough to accept a file. The middle is read if the beginning is all padding, and
/// before a file is rejected.
pub fn check(file: &FileReader<'_>, first: &[u8], dtype: Dtype) -> Result<()> {
    let width = item_bytes(dtype) as usize;
    let (mut is_bad, mut other) = (false, None);
    let size = file.opened.size();
    // A sample must also begin with the first byte of an 8-byte token.
    let middle = size.saturating_sub(SAMPLE_BYTES as u64) / 16 * 8;
    for place in [0, middle] {
        let sample = match place {
            0 => first,
            _ => &file.read(place, SAMPLE_BYTES as u64)?,
        };
        match fit(sample, width) {
            Fit::Good => return Ok(()),
            Fit::Unknown => {}
            Fit::Bad => {
                is_bad = true;
                let fits = |dtype: &&Dtype| is_likely(sample, width, item_bytes(**dtype) as usize);
                other = other.or_else(|| USUAL_DTYPES.iter().find(fits));
            }
        }
    }
    if !is_bad {
        return Ok(());
    }
    let asked = token_dtype_name(dtype);
    let found = other.map_or_else(
        || "its values are not ids of that type: pass the dtype that it was written with".to_owned(),
        |&other| {
            let other = token_dtype_name(other);
            format!("looks like {other}: open it with open_tokens(path, dtype=\"{other}\")")
        },
    );
    let detail = format!(
        "the file is read as {asked} tokens and {found}; if the tokens are {asked} all the same, open it with \
         open_tokens(path, format=\"raw\", dtype=\"{asked}\")"
    );
    Err(Error::format(file.opened.path(), 0, detail))
}

/// How well a sample of a file fits a width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    Good,
    Bad,
    Unknown,
}

fn fit(sample: &[u8], width: usize) -> Fit {
    let neighbours = || pairs(sample, width);
    let is_short = neighbours().nth(MIN_VALUES - 1).is_none();
    let is_one_token = || sample[width..] == sample[..sample.len() - width];
    if is_short || is_one_token() {
        return Fit::Unknown;
    }
    // The upper half of a token never reaches 256. In most files the first pairs show this.
    if width == 2 && neighbours().any(|(first, second)| second >= 256 && first % 256 != 0) {
        return Fit::Good;
    }
    let wider = [1, 2, 4].into_iter().filter(|half| *half >= width);
    let is_wider = wider.clone().any(|half| are_halves(pairs(sample, half)));
    let is_swapped = wider.clone().any(|half| are_swapped_halves(pairs(sample, half), half));
    if is_wider || is_swapped || width > 2 && are_neighbours(pairs(sample, width / 2)) {
        return Fit::Bad;
    }
    let first = neighbours().map(|(first, _)| first).collect();
    if different(first) >= MIN_DIFFERENT { Fit::Good } else { Fit::Unknown }
}

/// Returns whether tokens that do not fit one width probably have the other width. For example, halves of floats are
/// not tokens, although each half is small enough.
fn is_likely(sample: &[u8], width: usize, other: usize) -> bool {
    let have_common_values = || {
        let (mut lower, mut upper): (Vec<u64>, Vec<u64>) = pairs(sample, other).unzip();
        for values in [&mut lower, &mut upper] {
            values.sort_unstable();
            values.dedup();
        }
        let common = lower.iter().filter(|value| upper.binary_search(value).is_ok()).count();
        common >= lower.len().min(upper.len()).div_ceil(8)
    };
    fit(sample, other) == Fit::Good && (other > width || have_common_values())
}

/// Reads a sample as pairs of values of `width` bytes. Leaves out pairs that form a small negative number, because
/// labels contain such numbers as marks.
fn pairs(sample: &[u8], width: usize) -> impl Iterator<Item = (u64, u64)> + Clone {
    let value = move |bytes: &[u8]| match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => bytes.try_into().map_or(0, u64::from_le_bytes),
    };
    let negative = u64::MAX >> (64 - 8 * width);
    let pairs = sample.chunks_exact(2 * width).map(move |pair| {
        let (first, second) = pair.split_at(width);
        (value(first), value(second))
    });
    pairs.filter(move |(_, second)| *second != negative)
}

/// Returns whether the second values are the upper halves of tokens: few distinct values, none above 255, and many
/// zeros unless all are below 4. In a list of numbers and commas, every second value is also one of few, but hardly
/// ever zero.
fn are_halves(pairs: impl Iterator<Item = (u64, u64)> + Clone) -> bool {
    if pairs.clone().any(|(_, upper)| upper >= 256) {
        return false;
    }
    let zeros = pairs.clone().filter(|(_, upper)| *upper == 0).count();
    let are_tiny = pairs.clone().all(|(_, upper)| upper < 4);
    let (lower, upper): (Vec<u64>, Vec<u64>) = pairs.unzip();
    let is_often_zero = zeros >= upper.len() / 8;
    let (lower, upper) = (different(lower), different(upper));
    (is_often_zero || are_tiny) && lower >= MIN_DIFFERENT && upper <= lower / 4
}

/// Returns whether the first values are the upper halves of big-endian tokens, with the bytes also in reverse order.
fn are_swapped_halves(pairs: impl Iterator<Item = (u64, u64)> + Clone, half: usize) -> bool {
    let low_bits = 8 * (half as u32 - 1);
    let is_swapped = |first: u64| first.trailing_zeros() >= low_bits;
    half > 1
        && pairs.clone().all(|(first, _)| is_swapped(first))
        && are_halves(pairs.map(|(first, second)| (second, first >> low_bits)))
}

/// Returns whether the halves of tokens are tokens themselves: several values that reach as high as the first ones.
/// Upper halves of tokens do not: in a vocabulary of 2^24 they reach 255, and the lower halves 65,535.
fn are_neighbours(halves: impl Iterator<Item = (u64, u64)> + Clone) -> bool {
    let (lower, upper) = halves.clone().fold((0, 0), |(a, b), (c, d)| (c.max(a), d.max(b)));
    upper > 0 && upper >= lower / 16 && different(halves.map(|(_, upper)| upper).collect()) >= 4
}

fn different(mut values: Vec<u64>) -> usize {
    values.sort_unstable();
    values.dedup();
    values.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::mix;

    /// Ids as they occur in text: small ones are frequent.
    fn tokens(seed: u64, vocabulary: u64) -> impl Iterator<Item = i64> {
        (0..4096_u64).map(move |index| {
            let random = mix(seed << 32 | index);
            let bound = vocabulary >> (random % u64::from(vocabulary.ilog2()));
            ((random >> 32) % bound) as i64
        })
    }

    fn sample(tokens: impl Iterator<Item = i64>, width: usize) -> Vec<u8> {
        tokens.flat_map(|token| token.to_le_bytes().into_iter().take(width)).take(SAMPLE_BYTES).collect()
    }

    /// The vocabularies that fit a width.
    fn vocabularies(width: usize) -> impl Iterator<Item = u64> {
        let all = [16_u64, 256, 1000, 4096, 32_000, 50_257, 65_536, 128_256, 262_144, 1 << 20, 1 << 24];
        all.into_iter().filter(move |vocabulary| width > 2 || *vocabulary <= 65_536)
    }

    #[test]
    fn tokens_fit_their_own_width_and_no_other() {
        for width in [2, 4, 8] {
            for (vocabulary, seed) in vocabularies(width).flat_map(|ids| (0..10).map(move |seed| (ids, seed)))
            {
                let sample = sample(tokens(seed, vocabulary), width);
                let case = format!("{width} bytes, {vocabulary} ids, {seed}");
                for asked in [2, 4, 8] {
                    let expected = if asked == width { Fit::Good } else { Fit::Bad };
                    assert_eq!(fit(&sample, asked), expected, "{case}, read as {asked}");
                }
                // A sample as short as a sentence must not be rejected either.
                for len in (0..sample.len().min(1024)).step_by(width) {
                    assert_ne!(fit(&sample[..len], width), Fit::Bad, "{case}, {len}");
                }
            }
        }
    }

    #[test]
    fn padding_marks_and_lists_are_not_refused() {
        let padded = |pad: i64| move |(index, token): (usize, i64)| if index % 64 < 20 { token } else { pad };
        for width in [2, 4, 8] {
            for token in [0, 1, 255, 256, 50_256, 65_535] {
                let repeated = sample(std::iter::repeat_n(token, 4096), width);
                assert_ne!(fit(&repeated, width), Fit::Bad, "{width} bytes, token {token}");
            }
            // Labels with the mark for ignored positions, which signed types have.
            for mark in [0, -1, -100] {
                for vocabulary in vocabularies(width) {
                    let marked = sample(tokens(1, vocabulary / 2).enumerate().map(padded(mark)), width);
                    assert_eq!(fit(&marked, width), Fit::Good, "{width} bytes, {vocabulary} ids, {mark}");
                }
            }
            // Numbers with a comma after each.
            let list =
                tokens(2, 10_000).enumerate().map(|(index, token)| if index % 2 == 1 { 11 } else { token });
            assert_eq!(fit(&sample(list, width), width), Fit::Good, "{width} bytes");
        }
    }
}
