//! Kernels: tokens of any integer type into the type that a batch has. Unsafe island 2 (so far without
//! an unsafe block: sources are copied out of the mapping first, into a scratch block that stays in the
//! first-level cache, by the copy that survives bus errors).

use std::mem::MaybeUninit;

use crate::dtype::Dtype;
use crate::error::Error;

/// The element type of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    I64,
    I32,
    /// As in the file, to be widened on the device.
    Raw,
}

impl Element {
    pub fn from_word(word: &str) -> crate::error::Result<Self> {
        match word {
            "int64" => Ok(Self::I64),
            "int32" => Ok(Self::I32),
            "raw" => Ok(Self::Raw),
            _ => Err(Error::argument(format!("dtype is \"int64\", \"int32\" or \"raw\", not {word:?}"))),
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::I64 => "int64",
            Self::I32 => "int32",
            Self::Raw => "raw",
        }
    }

    pub fn bytes(self, source: Dtype) -> u64 {
        match self {
            Self::I64 => 8,
            Self::I32 => 4,
            Self::Raw => source.bits() / 8,
        }
    }
}

/// A token that the batch's type cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoesNotFit {
    /// Its place among the tokens given.
    pub position: usize,
}

/// Writes every token of `source` (little-endian, of type `dtype`) to `out` as `element`.
///
/// `out` has exactly as many elements. Nothing is wrapped or truncated.
pub fn widen(
    source: &[u8],
    dtype: Dtype,
    element: Element,
    out: &mut [MaybeUninit<u8>],
) -> Result<(), DoesNotFit> {
    macro_rules! exact {
        ($from:ty => $to:ty) => {
            convert(source, out, |token| <$to>::from(<$from>::from_le_bytes(token)).to_ne_bytes())
        };
    }
    macro_rules! checked {
        ($from:ty => $to:ty) => {{
            all_fit(source, |token| <$to>::try_from(<$from>::from_le_bytes(token)).is_ok())?;
            convert(source, out, |token| (<$from>::from_le_bytes(token) as $to).to_ne_bytes());
        }};
    }
    match (element, dtype) {
        (Element::Raw, _) => convert::<1, 1>(source, out, |byte| byte),
        (Element::I64, Dtype::U8) => exact!(u8 => i64),
        (Element::I64, Dtype::I8) => exact!(i8 => i64),
        (Element::I64, Dtype::U16) => exact!(u16 => i64),
        (Element::I64, Dtype::I16) => exact!(i16 => i64),
        (Element::I64, Dtype::U32) => exact!(u32 => i64),
        (Element::I64, Dtype::I32) => exact!(i32 => i64),
        (Element::I64, Dtype::I64) => exact!(i64 => i64),
        (Element::I64, _) => checked!(u64 => i64),
        (Element::I32, Dtype::U8) => exact!(u8 => i32),
        (Element::I32, Dtype::I8) => exact!(i8 => i32),
        (Element::I32, Dtype::U16) => exact!(u16 => i32),
        (Element::I32, Dtype::I16) => exact!(i16 => i32),
        (Element::I32, Dtype::I32) => exact!(i32 => i32),
        (Element::I32, Dtype::U32) => checked!(u32 => i32),
        (Element::I32, Dtype::I64) => checked!(i64 => i32),
        (Element::I32, _) => checked!(u64 => i32),
    }
    Ok(())
}

/// Converts tokens of `S` bytes to elements of `D` bytes.
fn convert<const S: usize, const D: usize>(
    source: &[u8],
    out: &mut [MaybeUninit<u8>],
    convert: impl Fn([u8; S]) -> [u8; D],
) {
    let (tokens, _) = source.as_chunks::<S>();
    let (elements, _) = out.as_chunks_mut::<D>();
    for (token, element) in tokens.iter().zip(elements) {
        *element = convert(*token).map(MaybeUninit::new);
    }
}

fn all_fit<const S: usize>(source: &[u8], fits: impl Fn([u8; S]) -> bool) -> Result<(), DoesNotFit> {
    let (tokens, _) = source.as_chunks::<S>();
    tokens.iter().position(|token| !fits(*token)).map_or(Ok(()), |position| Err(DoesNotFit { position }))
}
