//! Natural order of names: `model-00002` before `model-00010`, and `part2` before `part10`.

use std::cmp::Ordering;

/// Runs of digits count as numbers; where that leaves two names equal, their bytes decide.
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(&x), Some(&y)) = (left.first(), right.first()) {
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let (first, second) = (digits(&mut left), digits(&mut right));
            // Of numbers without leading zeros the longer one is larger.
            first.len().cmp(&second.len()).then_with(|| first.cmp(second))
        } else {
            (left, right) = (&left[1..], &right[1..]);
            // Digits before all else, as in the order of token files.
            (!x.is_ascii_digit(), x).cmp(&(!y.is_ascii_digit(), y))
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Takes the digits at the start off, and gives them without leading zeros.
fn digits<'t>(text: &mut &'t [u8]) -> &'t [u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    *text = rest;
    let zeros = number.iter().take_while(|&&byte| byte == b'0').count();
    &number[zeros..]
}
