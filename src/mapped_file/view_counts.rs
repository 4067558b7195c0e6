//! Counts the views of each large tensor.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use crate::os::process::fork;

/// The views of each large tensor in a copy-on-write mapping, by the offset of the tensor.
#[derive(Debug, Default)]
pub(super) struct ViewCounts(Mutex<HashMap<usize, TensorViews>>);

#[derive(Debug, Default)]
struct TensorViews {
    count: usize,
    /// Whether any of them is, or was, writable.
    any_writable: bool,
}

impl ViewCounts {
    pub fn add(&self, tensor: usize, is_writable: bool) {
        fork::with_lock(&self.0, |counts| {
            let views = counts.entry(tensor).or_default();
            views.count += 1;
            views.any_writable |= is_writable;
        });
    }

    /// Returns whether it was the last view, and any of the views was writable.
    pub fn remove(&self, tensor: usize) -> bool {
        fork::with_lock(&self.0, |counts| {
            let Entry::Occupied(mut views) = counts.entry(tensor) else { return false };
            views.get_mut().count -= 1;
            views.get().count == 0 && views.remove().any_writable
        })
    }

    /// Calls `act` if a tensor has no view. No view can appear meanwhile.
    pub fn if_unused(&self, tensor: usize, act: impl FnOnce()) {
        fork::with_lock(&self.0, |counts| {
            if !counts.contains_key(&tensor) {
                act();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_view_of_a_writable_tensor_is_reported() {
        let counts = ViewCounts::default();
        for is_writable in [false, true, false] {
            counts.add(7, is_writable);
        }
        counts.add(8, false);
        assert_eq!([counts.remove(7), counts.remove(7), counts.remove(7)], [false, false, true]);
        assert!(!counts.remove(8), "none was writable");
        counts.add(7, false);
        assert!(!counts.remove(7), "what was before counts no more");
        assert!(!counts.remove(7), "there is none");
    }

    #[test]
    fn a_concurrent_view_keeps_the_tensors_pages() {
        let counts = ViewCounts::default();
        counts.add(7, true);
        assert!(counts.remove(7));
        let mut is_unused = false;
        counts.if_unused(7, || is_unused = true);
        assert!(is_unused);
        counts.add(7, true);
        counts.if_unused(7, || panic!("it is in use"));
    }
}
