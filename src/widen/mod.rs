//! Kernels that widen tokens of any integer type to the element type of a batch. Unsafe island 2.
//!
//! ```text
//!   mapping ──copy that survives bus errors──> scratch block ──kernel──> x and y       (widening)
//!   mapping ──copy that survives bus errors──> x and y                                 (Element::is_copy)
//! ```
//!
//! Every token is converted exactly, or rejected with its position ([`DoesNotFit`]). Nothing is wrapped or truncated.
//! [`first_beyond`] finds an id outside a vocabulary, and [`first_equal`] finds a given id. A kernel reads this crate's
//! own memory, never a mapping: the scratch block stays in the first-level cache. A kernel keeps no state, opens no
//! file, and any thread may call it.

mod kernels;

use crate::dtype::Dtype;
use crate::os::memory::Uninit;
use crate::words::words;

use kernels::{Kernel, To};

words! {
    /// The element type of a batch.
    pub enum Element as "dtype" {
        I64 = "int64",
        I32 = "int32",
        /// The type of the file; the device widens it.
        Raw = "raw",
    }
}

impl Element {
    pub fn bytes(self, source: Dtype) -> u64 {
        match self {
            Self::I64 => 8,
            Self::I32 => 4,
            Self::Raw => source.bits() / 8,
        }
    }

    /// Returns whether a batch has the same bytes as the file, so that tokens of type `source` are copied without a
    /// kernel.
    pub fn is_copy(self, source: Dtype) -> bool {
        let same = matches!((self, source), (Self::I64, Dtype::I64) | (Self::I32, Dtype::I32));
        self == Self::Raw || (same && cfg!(target_endian = "little"))
    }
}

/// A token that the element type of the batch cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoesNotFit {
    /// The index of the token in the source.
    pub position: usize,
}

/// Writes every token of `source` (little-endian, of type `dtype`) to `out` as `element`.
///
/// `out` must have the same number of elements. If a token does not fit, the content of `out` is undefined.
pub fn widen(source: &[u8], dtype: Dtype, element: Element, out: Uninit<'_>) -> Result<(), DoesNotFit> {
    let kernel = kernel(dtype, element);
    kernel.answer((kernel.row)(source, out), source)
}

/// Writes a window of T + 1 tokens like [`widen`]: all except the last to `x`, and all except the first to `y`. Every
/// token is read and converted once.
pub fn widen_window(
    source: &[u8],
    dtype: Dtype,
    element: Element,
    x: Uninit<'_>,
    y: Uninit<'_>,
) -> Result<(), DoesNotFit> {
    let kernel = kernel(dtype, element);
    kernel.answer((kernel.window)(source, x, y), source)
}

/// Calls a kernel for tokens of type `dtype`.
macro_rules! of_type {
    ($dtype:expr, $kernel:ident($($argument:expr),+)) => {
        match $dtype {
            Dtype::U8 => kernels::$kernel::<u8, 1>($($argument),+),
            Dtype::I8 => kernels::$kernel::<i8, 1>($($argument),+),
            Dtype::U16 => kernels::$kernel::<u16, 2>($($argument),+),
            Dtype::I16 => kernels::$kernel::<i16, 2>($($argument),+),
            Dtype::U32 => kernels::$kernel::<u32, 4>($($argument),+),
            Dtype::I32 => kernels::$kernel::<i32, 4>($($argument),+),
            Dtype::I64 => kernels::$kernel::<i64, 8>($($argument),+),
            _ => kernels::$kernel::<u64, 8>($($argument),+),
        }
    };
}

/// A token outside the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beyond {
    /// The index of the token in the source.
    pub position: usize,
    pub id: i128,
}

/// Returns the first token of `source` whose id is not in `0..vocabulary`. It finds the greatest id in one vectorised
/// pass, and looks for the position only if that id is too large.
pub fn first_beyond(source: &[u8], dtype: Dtype, vocabulary: u64) -> Option<Beyond> {
    let found = of_type!(dtype, first_beyond(source, vocabulary));
    found.map(|(position, id)| Beyond { position, id })
}

/// Returns the index of the first token of `source` with this id.
pub fn first_equal(source: &[u8], dtype: Dtype, id: u64) -> Option<usize> {
    of_type!(dtype, first_equal(source, id))
}

impl Kernel {
    fn answer(self, fits: bool, source: &[u8]) -> Result<(), DoesNotFit> {
        if fits { Ok(()) } else { Err(DoesNotFit { position: (self.first_misfit)(source) }) }
    }
}

fn kernel(dtype: Dtype, element: Element) -> Kernel {
    macro_rules! to {
        ($from:ty => $into:ty) => {
            Kernel::of::<To<$from, $into>, { size_of::<$from>() }, { size_of::<$into>() }>()
        };
    }
    match (element, dtype) {
        (Element::Raw, Dtype::U8 | Dtype::I8) => to!(u8 => u8),
        (Element::Raw, Dtype::U16 | Dtype::I16) => to!(u16 => u16),
        (Element::Raw, Dtype::U32 | Dtype::I32) => to!(u32 => u32),
        (Element::Raw, _) => to!(u64 => u64),
        (Element::I64, Dtype::U8) => to!(u8 => i64),
        (Element::I64, Dtype::I8) => to!(i8 => i64),
        (Element::I64, Dtype::U16) => to!(u16 => i64),
        (Element::I64, Dtype::I16) => to!(i16 => i64),
        (Element::I64, Dtype::U32) => to!(u32 => i64),
        (Element::I64, Dtype::I32) => to!(i32 => i64),
        (Element::I64, Dtype::I64) => to!(i64 => i64),
        (Element::I64, _) => to!(u64 => i64),
        (Element::I32, Dtype::U8) => to!(u8 => i32),
        (Element::I32, Dtype::I8) => to!(i8 => i32),
        (Element::I32, Dtype::U16) => to!(u16 => i32),
        (Element::I32, Dtype::I16) => to!(i16 => i32),
        (Element::I32, Dtype::I32) => to!(i32 => i32),
        (Element::I32, Dtype::U32) => to!(u32 => i32),
        (Element::I32, Dtype::I64) => to!(i64 => i32),
        (Element::I32, _) => to!(u64 => i32),
    }
}
