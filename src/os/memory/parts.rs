//! A memory block that several threads fill at once, each in its own part.

use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::sync::Arc;

use rustix::io::Errno;

use super::anonymous::Anonymous;
use super::uninit::Uninit;
use crate::allocate;

/// Memory that can be split.
///
/// # Safety
/// While the value is neither borrowed mutably nor dropped, the `len` bytes at `as_ptr` stay in place and are
/// writable, and no other code of this crate writes to them. If `is_private` is true, all of them are initialised, and
/// nothing outside this crate has their address.
pub unsafe trait WritableMemory: Debug + Send + Sync {
    fn as_ptr(&self) -> *mut u8;
    fn len(&self) -> usize;

    /// Returns whether the owner of the value may read the memory: it is initialised, and no other process and no user
    /// writes to it.
    fn is_private(&self) -> bool {
        false
    }
}

// SAFETY: the block alone owns the mapping, and only a mutable borrow moves it or makes it read-only.
unsafe impl WritableMemory for Anonymous {
    fn as_ptr(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn len(&self) -> usize {
        self.len()
    }

    /// The kernel initialises anonymous memory.
    fn is_private(&self) -> bool {
        self.descriptor().is_none()
    }
}

// SAFETY: follows from the implementation for the boxed value.
unsafe impl WritableMemory for Box<dyn WritableMemory> {
    fn as_ptr(&self) -> *mut u8 {
        self.as_ref().as_ptr()
    }

    fn len(&self) -> usize {
        self.as_ref().len()
    }

    fn is_private(&self) -> bool {
        self.as_ref().is_private()
    }
}

/// A block that is split. [`Whole::join`] returns it once its parts are gone.
#[derive(Debug)]
pub struct Whole<M = Anonymous>(Arc<M>);

/// One range of a split block, and the only way to write to that range.
#[derive(Debug)]
pub struct Part {
    block: Arc<dyn WritableMemory>,
    offset: usize,
    len: usize,
}

/// Splits a block into `ranges` of (offset, length), which must ascend and not overlap.
pub fn split<M: WritableMemory + 'static>(
    block: M,
    ranges: &[(usize, usize)],
) -> Result<(Whole<M>, Vec<Part>), Errno> {
    let mut free_from = 0;
    for &(offset, len) in ranges {
        let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
        if offset < free_from || end > block.len() {
            return Err(Errno::INVAL);
        }
        free_from = end;
    }
    let block = Arc::new(block);
    let part = |&(offset, len): &(usize, usize)| Part { block: block.clone(), offset, len };
    let parts = allocate::collected(ranges.iter().map(part), "the parts of a block");
    let parts = parts.map_err(|_| Errno::NOMEM)?;
    Ok((Whole(block), parts))
}

impl<M: WritableMemory> Whole<M> {
    /// Returns all bytes that the parts wrote. `None` if a part is left, or if others can write to the memory.
    pub fn bytes(&mut self) -> Option<&[u8]> {
        let block = Arc::get_mut(&mut self.0).filter(|block| block.is_private())?;
        // SAFETY: `is_private` guarantees that the bytes are initialised and belong only to the owner that gave the
        // block to `split`. No part is left, and `&mut self` excludes code that could create one.
        Some(unsafe { std::slice::from_raw_parts(block.as_ptr(), block.len()) })
    }

    /// Returns the block, if no part is left.
    pub fn join(self) -> Result<M, Self> {
        Arc::try_unwrap(self.0).map_err(Self)
    }
}

impl Part {
    pub fn memory(&mut self) -> Uninit<'_> {
        let start = self.block.as_ptr().wrapping_add(self.offset);
        // SAFETY: `split` checked that the range lies inside the block and overlaps no other part, and took the block
        // from its owner until `join`; `&mut self` excludes a second borrow.
        let memory = unsafe { std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), self.len) };
        Uninit::spare(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::anonymous::HugePages;

    fn block(len: usize) -> Anonymous {
        Anonymous::private(len, HugePages::Never).expect("memory")
    }

    #[test]
    fn threads_fill_their_parts_and_the_block_is_joined() {
        let (mut whole, parts) = split(block(10_000), &[(0, 100), (100, 0), (128, 9872)]).expect("valid");
        std::thread::scope(|scope| {
            for (number, mut part) in parts.into_iter().enumerate() {
                scope.spawn(move || part.memory().fill(number as u8 + 1));
            }
        });
        let bytes = whole.bytes().expect("no part is out");
        assert_eq!(bytes.len(), 10_000);
        assert!(bytes[..100].iter().all(|&byte| byte == 1) && bytes[100..128].iter().all(|&byte| byte == 0));
        assert!(bytes[128..].iter().all(|&byte| byte == 3));
    }

    #[test]
    fn a_block_with_a_live_part_is_not_joined() {
        let (mut whole, parts) = split(block(100), &[(0, 10)]).expect("valid");
        assert_eq!(whole.bytes(), None);
        let whole = whole.join().expect_err("a part is out");
        drop(parts);
        assert_eq!(whole.join().expect("none is out").len(), 100);
    }

    #[test]
    fn memory_that_others_can_write_is_not_read() {
        let shared = Anonymous::shared(100, HugePages::Never).expect("memory");
        assert_eq!(split(shared, &[]).expect("valid").0.bytes(), None);
    }

    #[test]
    fn overlapping_and_outlying_parts_are_refused() {
        for ranges in [vec![(0, 10), (9, 1)], vec![(10, 5), (0, 5)], vec![(0, 101)], vec![(usize::MAX, 2)]] {
            assert_eq!(split(block(100), &ranges).map(drop), Err(Errno::INVAL), "{ranges:?}");
        }
    }
}
