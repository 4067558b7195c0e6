//! Element types: names, sizes, and the size of arrays.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal),+ $(,)?) => {
        /// An element type of safetensors. The integers are also token types.
        ///
        /// Source: <https://github.com/huggingface/safetensors>, `tensor.rs`, `Dtype`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Dtype { $($variant),+ }

        impl Dtype {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in a safetensors header.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            pub const fn bits(self) -> u64 {
                match self { $(Self::$variant => $bits),+ }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

dtypes! {
    Bool "BOOL" 8,
    F4 "F4" 4,
    F6E2M3 "F6_E2M3" 6,
    F6E3M2 "F6_E3M2" 6,
    U8 "U8" 8,
    I8 "I8" 8,
    F8E5M2 "F8_E5M2" 8,
    F8E4M3 "F8_E4M3" 8,
    F8E8M0 "F8_E8M0" 8,
    F8E4M3Fnuz "F8_E4M3FNUZ" 8,
    F8E5M2Fnuz "F8_E5M2FNUZ" 8,
    I16 "I16" 16,
    U16 "U16" 16,
    F16 "F16" 16,
    Bf16 "BF16" 16,
    I32 "I32" 32,
    U32 "U32" 32,
    F32 "F32" 32,
    C64 "C64" 64,
    F64 "F64" 64,
    I64 "I64" 64,
    U64 "U64" 64,
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why a shape has no size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeError {
    /// The number of elements, or of their bits, is larger than 2^64 - 1.
    Overflow,
    /// The bits do not fill whole bytes (types of 4 and 6 bits).
    Unaligned,
}

impl Dtype {
    /// Returns the size of an element in bytes, or `None` for types smaller than a byte.
    pub const fn size_bytes(self) -> Option<usize> {
        if self.bits().is_multiple_of(8) { Some((self.bits() / 8) as usize) } else { None }
    }

    /// Returns the size of an array of this shape in bytes. It checks every product from left to right, so `[2^40,
    /// 2^40, 0]` overflows and `[0, 2^40, 2^40]` is empty.
    pub fn array_bytes(self, shape: &[u64]) -> Result<u64, SizeError> {
        let elements = shape
            .iter()
            .try_fold(1_u64, |product, &dimension| product.checked_mul(dimension))
            .ok_or(SizeError::Overflow)?;
        let bits = elements.checked_mul(self.bits()).ok_or(SizeError::Overflow)?;
        if bits.is_multiple_of(8) { Ok(bits / 8) } else { Err(SizeError::Unaligned) }
    }
}
