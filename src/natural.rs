//! Natural order of names: `model-00002` before `model-00010`, and `part2` before `part10`.

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hasher};

/// Compares names with runs of digits as numbers; of names that are equal then, the bytes decide.
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(&x), Some(&y)) = (left.first(), right.first()) {
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let (first, second) = (digits(&mut left), digits(&mut right));
            // Without leading zeros the longer number is the larger one.
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

/// Returns a number that names have in common if they differ in their numbers alone, as those of layers do.
pub fn kind_of(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut rest = name;
    while let Some((&first, after)) = rest.split_first() {
        if first.is_ascii_digit() {
            digits(&mut rest);
            hasher.write_u8(b'0');
        } else {
            rest = after;
            hasher.write_u8(first);
        }
    }
    hasher.finish()
}

/// Splits the digits off the start, and returns them without leading zeros.
fn digits<'t>(text: &mut &'t [u8]) -> &'t [u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    *text = rest;
    let zeros = number.iter().take_while(|&&byte| byte == b'0').count();
    &number[zeros..]
}
