//! Duplicates: the last one wins, as with `dict.update`.

/// Keeps the last of several equal neighbours.
pub(super) fn keep_last<T>(items: &mut Vec<T>, mut is_same: impl FnMut(&T, &T) -> bool) {
    items.reverse();
    items.dedup_by(|a, b| is_same(a, b));
    items.reverse();
}
