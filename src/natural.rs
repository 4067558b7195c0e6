//! Natural order of names: `model-00002` before `model-00010`, and `part2` before `part10`.

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hasher};

/// Compares names, with runs of digits as numbers. Between equal names the bytes decide.
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(&x), Some(&y)) = (left.first(), right.first()) {
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let (first, second) = (digits(&mut left), digits(&mut right));
            // Without leading zeros, the longer number is larger.
            first.len().cmp(&second.len()).then_with(|| first.cmp(second))
        } else {
            (left, right) = (&left[1..], &right[1..]);
            // Digits come first, as in the order of token files.
            (!x.is_ascii_digit(), x).cmp(&(!y.is_ascii_digit(), y))
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Hashes that group a name with similar names, for example of other layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameKinds {
    /// Equal for names that differ only in their numbers.
    pub kind: u64,
    /// Equal for names that differ only in their first number, which is the layer's and not an expert's.
    pub series: u64,
}

/// Returns the hashes that group a name with similar names.
pub fn kinds_of(name: &[u8]) -> NameKinds {
    let (mut kind, mut series) = (DefaultHasher::new(), DefaultHasher::new());
    let (mut rest, mut is_layer) = (name, true);
    while let Some((&first, after)) = rest.split_first() {
        if first.is_ascii_digit() {
            let number = digits(&mut rest);
            kind.write_u8(b'0');
            series.write(if std::mem::take(&mut is_layer) { b"0" } else { number });
        } else {
            rest = after;
            kind.write_u8(first);
            series.write_u8(first);
        }
    }
    NameKinds { kind: kind.finish(), series: series.finish() }
}

/// Splits leading digits off the text, and returns them without leading zeros.
fn digits<'t>(text: &mut &'t [u8]) -> &'t [u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    *text = rest;
    let zeros = number.iter().take_while(|&&byte| byte == b'0').count();
    &number[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_of_one_expert_and_a_kind_of_all() {
        let names: [&[u8]; 3] =
            [b"layers.0.experts.3.w1", b"layers.12.experts.3.w1", b"layers.0.experts.4.w1"];
        let [first, next, other] = names.map(kinds_of);
        assert_eq!(first, next);
        assert_eq!(first.kind, other.kind);
        assert_ne!(first.series, other.series);
        assert_ne!(first.kind, kinds_of(b"layers.0.experts.3.norm").kind);
    }
}
