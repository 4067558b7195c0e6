//! Allocations that return an error. The standard library's allocations end the process.
//!
//! Use them for memory whose size comes from a file or a caller, and for buffers of 64 KiB or more.

use std::fmt;

/// Memory that could not be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OutOfMemory {
    pub bytes: usize,
    /// The purpose of the memory, for example "a header".
    pub purpose: &'static str,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, purpose } = self;
        write!(
            f,
            "cannot allocate {bytes} bytes for {purpose}: free memory, or raise the limit of the process (ulimit -v)"
        )
    }
}

impl std::error::Error for OutOfMemory {}

/// Returns an empty vector with capacity for `len` elements.
pub fn vec<T>(len: usize, purpose: &'static str) -> Result<Vec<T>, OutOfMemory> {
    let mut room = Vec::new();
    reserve(&mut room, len, purpose)?;
    Ok(room)
}

/// Reserves capacity for exactly `more` additional elements.
pub fn reserve<T>(vec: &mut Vec<T>, more: usize, purpose: &'static str) -> Result<(), OutOfMemory> {
    let bytes = vec.len().saturating_add(more).saturating_mul(size_of::<T>());
    vec.try_reserve_exact(more).map_err(|_| OutOfMemory { bytes, purpose })
}

/// Appends an element.
pub fn push<T>(vec: &mut Vec<T>, item: T, purpose: &'static str) -> Result<(), OutOfMemory> {
    if vec.len() == vec.capacity() {
        let bytes = 2 * size_of_val(&**vec);
        vec.try_reserve(1).map_err(|_| OutOfMemory { bytes, purpose })?;
    }
    vec.push(item);
    Ok(())
}

/// Returns an empty string with capacity for `len` bytes.
pub fn string(len: usize, purpose: &'static str) -> Result<String, OutOfMemory> {
    let mut room = String::new();
    room.try_reserve_exact(len).map_err(|_| OutOfMemory { bytes: len, purpose })?;
    Ok(room)
}

/// Returns `len` copies of a value.
pub fn filled<T: Clone>(value: T, len: usize, purpose: &'static str) -> Result<Vec<T>, OutOfMemory> {
    let mut room = vec(len, purpose)?;
    room.resize(len, value);
    Ok(room)
}

/// Returns the elements of an iterator.
pub fn collected<T>(items: impl Iterator<Item = T>, purpose: &'static str) -> Result<Vec<T>, OutOfMemory> {
    let mut room = vec(items.size_hint().0, purpose)?;
    for item in items {
        push(&mut room, item, purpose)?;
    }
    Ok(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_equal_those_of_the_standard_library() {
        assert_eq!(filled(7, 3, "a test"), Ok(vec![7; 3]));
        assert_eq!(collected(0..5, "a test"), Ok((0..5).collect()));
        let unknown = std::iter::successors(Some(1), |&last| (last < 1000).then_some(last + 1));
        assert_eq!(collected(unknown.clone(), "a test"), Ok(unknown.collect()));
    }

    #[test]
    fn impossible_allocations_are_errors() {
        let bytes = usize::MAX / 2;
        let error = OutOfMemory { bytes, purpose: "a test" };
        assert_eq!(vec::<u8>(bytes, "a test"), Err(error));
        assert_eq!(filled(0_u8, bytes, "a test"), Err(error));
        assert!(error.to_string().starts_with(&format!("cannot allocate {bytes} bytes for a test: ")));
        assert_eq!(vec::<u64>(bytes, "a test"), Err(OutOfMemory { bytes: usize::MAX, purpose: "a test" }));
        assert_eq!(string(bytes, "a test"), Err(error));
        assert!(collected(0..u64::MAX, "a test").is_err());
        assert!(reserve(&mut vec![0_u16; 2], bytes, "a test").is_err());
    }
}
