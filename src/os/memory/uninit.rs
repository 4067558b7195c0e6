//! Write-only memory: [`Uninit`].

use std::mem::{MaybeUninit, take};
use std::ops::Range;
use std::ptr;

/// The smallest page size of any supported system.
const PAGE_BYTES: usize = 4096;
/// Data rarely ends in this many zeros at the end of a page.
const TAIL_BYTES: usize = 8;

/// Memory that may be written but not read.
///
/// It may be uninitialised (the body of a new `bytes` object) or initialised (a caller's array). Code that receives it
/// cannot tell the difference, so it must neither read it nor make initialised bytes uninitialised. This type prevents
/// both: every safe method writes initialised bytes, splits the memory, or returns its length.
///
/// ```compile_fail,E0133
/// # use pagestream::os::memory::Uninit;
/// # use std::mem::MaybeUninit;
/// let mut bytes = [0_u8; 4];
/// // Reading `bytes` afterwards would be undefined behaviour.
/// Uninit::of(&mut bytes).as_maybe_uninit().fill(MaybeUninit::uninit());
/// ```
#[derive(Debug, Default)]
pub struct Uninit<'a>(&'a mut [MaybeUninit<u8>]);

/// `N` bytes of an [`Uninit`].
#[derive(Debug)]
pub struct UninitArray<'a, const N: usize>(&'a mut [MaybeUninit<u8>; N]);

impl<'a> Uninit<'a> {
    /// Wraps initialised memory.
    pub fn of(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        // SAFETY: the same memory, layout and lifetime. Nothing writes an uninitialised byte through an `Uninit`.
        Self(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), len) })
    }

    /// Wraps memory that is read only after it was written.
    pub fn spare(bytes: &'a mut [MaybeUninit<u8>]) -> Self {
        Self(bytes)
    }

    /// Returns the memory for code that writes it by other means.
    ///
    /// # Safety
    /// The caller writes no uninitialised byte.
    pub unsafe fn as_maybe_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        self.0
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lends all of it.
    pub fn reborrow(&mut self) -> Uninit<'_> {
        Uninit(self.0)
    }

    /// Lends a range. Panics if it does not lie inside.
    pub fn range(&mut self, range: Range<usize>) -> Uninit<'_> {
        Uninit(&mut self.0[range])
    }

    /// Splits it in two. Panics if `middle` lies beyond the end.
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        let (front, back) = self.0.split_at_mut(middle);
        (Self(front), Self(back))
    }

    /// Takes the first `len` bytes away. Panics if it has fewer.
    #[must_use]
    pub fn take_front(&mut self, len: usize) -> Self {
        let (front, back) = take(self).split_at(len);
        *self = back;
        front
    }

    /// Takes the last `len` bytes away. Panics if it has fewer.
    #[must_use]
    pub fn take_back(&mut self, len: usize) -> Self {
        let middle = self.len() - len;
        let (front, back) = take(self).split_at(middle);
        *self = front;
        back
    }

    /// Pieces of `len` bytes; the last one may be shorter.
    pub fn chunks(self, len: usize) -> impl Iterator<Item = Self> {
        self.0.chunks_mut(len).map(Self)
    }

    /// Pieces of exactly `len` bytes. The rest at the end is left out.
    pub fn chunks_exact(self, len: usize) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        self.0.chunks_exact_mut(len).map(Self)
    }

    /// Same as [`Self::chunks_exact`], with a length that the compiler knows.
    pub fn arrays<const N: usize>(
        self,
    ) -> impl DoubleEndedIterator<Item = UninitArray<'a, N>> + ExactSizeIterator {
        self.0.as_chunks_mut::<N>().0.iter_mut().map(UninitArray)
    }

    /// Fills the memory. Panics if `bytes` has another length.
    pub fn copy_from_slice(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len(), "bytes of another length");
        // SAFETY: both have this many bytes, and `self` borrows its own exclusively.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_mut_ptr(), bytes.len()) };
    }

    /// Returns whether a page of it, or all of it, ends in zeros. `offset` is the position of the first byte in its
    /// file.
    ///
    /// # Safety
    /// All bytes were written.
    pub unsafe fn has_zero_tail(&self, offset: u64) -> bool {
        let len = self.len();
        let first_end = PAGE_BYTES - offset as usize % PAGE_BYTES;
        let ends = (first_end..len).step_by(PAGE_BYTES).chain((len > 0).then_some(len));
        // No slice of them: other code may write to a caller's buffer.
        let is_zero = |byte: &MaybeUninit<u8>| {
            // SAFETY: the caller wrote all bytes.
            unsafe { ptr::from_ref(byte).cast::<u8>().read_volatile() == 0 }
        };
        ends.into_iter().any(|end| self.0[end.saturating_sub(TAIL_BYTES)..end].iter().all(is_zero))
    }

    /// Writes `byte` everywhere.
    pub fn fill(&mut self, byte: u8) {
        self.0.fill(MaybeUninit::new(byte));
    }
}

impl<const N: usize> UninitArray<'_, N> {
    #[inline]
    pub fn write(self, bytes: [u8; N]) {
        *self.0 = bytes.map(MaybeUninit::new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_at_the_end_of_a_page_are_detected() {
        const PAGE: usize = PAGE_BYTES;
        let has_zero_tail = |offset: u64, zeros: Range<usize>| {
            let mut bytes = vec![1; 3 * PAGE_BYTES];
            bytes[zeros].fill(0);
            // SAFETY: they are initialised.
            unsafe { Uninit::of(&mut bytes).has_zero_tail(offset) }
        };
        assert!(!has_zero_tail(0, 0..0));
        assert!(has_zero_tail(0, PAGE - 8..PAGE));
        assert!(!has_zero_tail(0, PAGE - 8..PAGE - 1));
        assert!(has_zero_tail(100, PAGE - 108..PAGE - 100));
        assert!(!has_zero_tail(100, PAGE - 8..PAGE));
        assert!(has_zero_tail(100, 3 * PAGE - 8..3 * PAGE), "the range ends here, and the page does not");
        // SAFETY: an empty slice has no bytes.
        assert!(!unsafe { Uninit::of(&mut []).has_zero_tail(0) });
        // SAFETY: it is initialised.
        assert!(unsafe { Uninit::of(&mut [0]).has_zero_tail(4095) });
    }

    #[test]
    fn writes_through_parts_reach_the_memory() {
        let mut bytes = [0; 11];
        let mut whole = Uninit::of(&mut bytes);
        whole.take_front(2).copy_from_slice(&[1, 2]);
        whole.take_back(1).fill(9);
        whole.range(0..1).fill(3);
        let (mut front, back) = whole.split_at(2);
        front.range(1..2).fill(4);
        for (number, array) in back.arrays::<3>().enumerate() {
            array.write([10 + number as u8; 3]);
        }
        assert_eq!(bytes, [1, 2, 3, 4, 10, 10, 10, 11, 11, 11, 9]);
        let mut spare = Vec::with_capacity(4);
        for (mut piece, byte) in Uninit::spare(&mut spare.spare_capacity_mut()[..4]).chunks(3).zip([7, 8]) {
            piece.fill(byte);
        }
        // SAFETY: the two pieces were the four bytes.
        unsafe { spare.set_len(4) };
        assert_eq!(spare, [7, 7, 7, 8]);
    }
}
