//! The loops. Each has one body, compiled for the target's baseline processor and, on x86-64, once more for AVX2. They
//! are plain loops over arrays, which the compiler vectorises. The only unsafe code calls the AVX2 function and gets
//! the output's bytes.
#![allow(unsafe_code)] // Island 2.
#![allow(clippy::inline_always)] // A body takes on the features of the function that it is inlined into.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::BitOr;

use crate::os::memory::Uninit;

/// The functions for a pair of types. The first two return whether all tokens fit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel {
    pub row: RowKernel,
    pub window: WindowKernel,
    pub first_misfit: fn(&[u8]) -> usize,
}

type RowKernel = fn(&[u8], Uninit<'_>) -> bool;
type WindowKernel = fn(&[u8], Uninit<'_>, Uninit<'_>) -> bool;

impl Kernel {
    pub(super) const fn of<C: Conversion<S, D>, const S: usize, const D: usize>() -> Self {
        Self { row: row::<C, S, D>, window: window::<C, S, D>, first_misfit: first_misfit::<C, S, D> }
    }
}

/// A conversion of tokens of `S` bytes to elements of `D` bytes.
pub(super) trait Conversion<const S: usize, const D: usize> {
    /// An integer of the token's width for checked conversions, so that both loops use the same number of lanes.
    type Misfit: Copy + Default + Eq + BitOr<Output = Self::Misfit>;

    fn convert(token: [u8; S]) -> [u8; D];

    /// Returns zero exactly if the token fits. The caller combines the results of many tokens with a bitwise or, and
    /// tests them once.
    fn misfit(token: [u8; S]) -> Self::Misfit;
}

#[derive(Debug)]
pub(super) struct To<From, Into>(PhantomData<(From, Into)>);

macro_rules! exact {
    ($($from:ty => $($into:ty),+;)+) => { $($(
        impl Conversion<{ size_of::<$from>() }, { size_of::<$into>() }> for To<$from, $into> {
            type Misfit = u8;

            #[inline(always)]
            fn convert(token: [u8; size_of::<$from>()]) -> [u8; size_of::<$into>()] {
                <$into>::from(<$from>::from_le_bytes(token)).to_ne_bytes()
            }

            #[inline(always)]
            fn misfit(_token: [u8; size_of::<$from>()]) -> u8 {
                0
            }
        }
    )+)+ };
}

exact! {
    u8 => i64, i32;
    i8 => i64, i32;
    u16 => i64, i32;
    i16 => i64, i32;
    u32 => i64;
    i32 => i64, i32;
    i64 => i64;
}

/// Conversions that keep the bytes of the file.
macro_rules! same {
    ($($token:ty),+) => { $(
        impl Conversion<{ size_of::<$token>() }, { size_of::<$token>() }> for To<$token, $token> {
            type Misfit = u8;

            #[inline(always)]
            fn convert(token: [u8; size_of::<$token>()]) -> [u8; size_of::<$token>()] {
                token
            }

            #[inline(always)]
            fn misfit(_token: [u8; size_of::<$token>()]) -> u8 {
                0
            }
        }
    )+ };
}

same!(u8, u16, u32, u64);

macro_rules! checked {
    ($($from:ty => $into:ty, $misfit:ty: $test:expr;)+) => { $(
        impl Conversion<{ size_of::<$from>() }, { size_of::<$into>() }> for To<$from, $into> {
            type Misfit = $misfit;

            #[inline(always)]
            fn convert(token: [u8; size_of::<$from>()]) -> [u8; size_of::<$into>()] {
                (<$from>::from_le_bytes(token) as $into).to_ne_bytes()
            }

            #[inline(always)]
            fn misfit(token: [u8; size_of::<$from>()]) -> $misfit {
                let test: fn($from) -> $misfit = $test;
                test(<$from>::from_le_bytes(token))
            }
        }
    )+ };
}

checked! {
    u64 => i64, u64: |token| token & 1 << 63;
    u32 => i32, u32: |token| token & 1 << 31;
    u64 => i32, u64: |token| token & !(i32::MAX as u64);
    // The difference between the token and its sign-extended lower half.
    i64 => i32, i64: |token| token ^ i64::from(token as i32);
}

/// Converts every token of `source`. Returns whether all of them fit.
#[inline(always)]
fn row_body<C: Conversion<S, D>, const S: usize, const D: usize>(
    source: &[[u8; S]],
    out: &mut [[MaybeUninit<u8>; D]],
) -> bool {
    let mut misfit = C::Misfit::default();
    for (token, element) in source.iter().zip(out) {
        misfit = misfit | C::misfit(*token);
        *element = C::convert(*token).map(MaybeUninit::new);
    }
    misfit == C::Misfit::default()
}

/// Converts all tokens except the last to `x`, and all except the first to `y`. Each token is converted once.
#[inline(always)]
fn window_body<C: Conversion<S, D>, const S: usize, const D: usize>(
    source: &[[u8; S]],
    x: &mut [[MaybeUninit<u8>; D]],
    y: &mut [[MaybeUninit<u8>; D]],
) -> bool {
    let ([first, inner @ .., last], [x_first, x_inner @ ..], [y_inner @ .., y_last]) = (source, x, y) else {
        // Too short for a window, so there is nothing to write.
        return source.iter().all(|token| C::misfit(*token) == C::Misfit::default());
    };
    let mut misfit = C::misfit(*first) | C::misfit(*last);
    *x_first = C::convert(*first).map(MaybeUninit::new);
    *y_last = C::convert(*last).map(MaybeUninit::new);
    for ((token, x), y) in inner.iter().zip(x_inner).zip(y_inner) {
        misfit = misfit | C::misfit(*token);
        let element = C::convert(*token).map(MaybeUninit::new);
        *x = element;
        *y = element;
    }
    misfit == C::Misfit::default()
}

/// Creates a function that calls a body, compiled for this processor.
macro_rules! dispatch {
    ($name:ident = $body:ident, [$($generics:tt)*] [$($names:tt)*]
        ($($argument:ident: $type:ty),+) -> $answer:ty) => {
        fn $name<$($generics)*>($($argument: $type),+) -> $answer {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2<$($generics)*>($($argument: $type),+) -> $answer {
                    $body::<$($names)*>($($argument),+)
                }
                // The standard library caches the answer.
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: this processor has AVX2.
                    return unsafe { avx2::<$($names)*>($($argument),+) };
                }
            }
            $body::<$($names)*>($($argument),+)
        }
    };
}

dispatch!(convert_row = row_body,
    [C: Conversion<S, D>, const S: usize, const D: usize] [C, S, D]
    (source: &[[u8; S]], out: &mut [[MaybeUninit<u8>; D]]) -> bool);
dispatch!(convert_window = window_body,
    [C: Conversion<S, D>, const S: usize, const D: usize] [C, S, D]
    (source: &[[u8; S]], x: &mut [[MaybeUninit<u8>; D]], y: &mut [[MaybeUninit<u8>; D]]) -> bool);
dispatch!(greatest = greatest_body,
    [T: Token<S>, const S: usize] [T, S]
    (tokens: &[[u8; S]]) -> T::Lane);
dispatch!(place_of = place_of_body,
    [T: Token<S>, const S: usize] [T, S]
    (tokens: &[[u8; S]], wanted: T::Lane) -> Option<usize>);

fn row<C: Conversion<S, D>, const S: usize, const D: usize>(source: &[u8], mut out: Uninit<'_>) -> bool {
    // SAFETY: the body writes only converted tokens.
    let out = unsafe { out.as_maybe_uninit() };
    convert_row::<C, S, D>(source.as_chunks().0, out.as_chunks_mut().0)
}

fn window<C: Conversion<S, D>, const S: usize, const D: usize>(
    source: &[u8],
    mut x: Uninit<'_>,
    mut y: Uninit<'_>,
) -> bool {
    // SAFETY: the body writes only converted tokens.
    let x = unsafe { x.as_maybe_uninit() };
    // SAFETY: the body writes only converted tokens here, too.
    let y = unsafe { y.as_maybe_uninit() };
    convert_window::<C, S, D>(source.as_chunks().0, x.as_chunks_mut().0, y.as_chunks_mut().0)
}

/// Converts a token of `S` bytes to an id.
pub(super) trait Token<const S: usize> {
    /// The unsigned type of the same width. A negative id becomes a lane above all nonnegative ids.
    type Lane: Copy + Default + Ord;

    fn lane(token: [u8; S]) -> Self::Lane;

    fn id(lane: Self::Lane) -> i128;

    /// Returns the lane of an id, or `None` if this type cannot represent it.
    fn lane_of(id: u64) -> Option<Self::Lane>;
}

macro_rules! tokens {
    ($($token:ty as $lane:ty),+) => { $(
        impl Token<{ size_of::<$token>() }> for $token {
            type Lane = $lane;

            #[inline(always)]
            fn lane(token: [u8; size_of::<$token>()]) -> $lane {
                <$lane>::from_le_bytes(token)
            }

            #[inline(always)]
            fn id(lane: $lane) -> i128 {
                i128::from(lane as $token)
            }

            fn lane_of(id: u64) -> Option<$lane> {
                let lane = <$lane>::try_from(id).ok()?;
                (Self::id(lane) == i128::from(id)).then_some(lane)
            }
        }
    )+ };
}

tokens!(u8 as u8, i8 as u8, u16 as u16, i16 as u16, u32 as u32, i32 as u32, u64 as u64, i64 as u64);

/// Returns the first token that is negative, or not below `limit`, and its id.
pub(super) fn first_beyond<T: Token<S>, const S: usize>(source: &[u8], limit: u64) -> Option<(usize, i128)> {
    let (tokens, _) = source.as_chunks::<S>();
    let is_beyond = |id: i128| !(0..i128::from(limit)).contains(&id);
    if !is_beyond(T::id(greatest::<T, S>(tokens))) {
        return None;
    }
    let ids = || tokens.iter().map(|token| T::id(T::lane(*token)));
    ids().enumerate().find(|(_, id)| is_beyond(*id))
}

#[inline(always)]
fn greatest_body<T: Token<S>, const S: usize>(tokens: &[[u8; S]]) -> T::Lane {
    tokens.iter().fold(T::Lane::default(), |greatest, token| greatest.max(T::lane(*token)))
}

/// Returns the index of the first token with an id.
pub(super) fn first_equal<T: Token<S>, const S: usize>(source: &[u8], id: u64) -> Option<usize> {
    place_of::<T, S>(source.as_chunks().0, T::lane_of(id)?)
}

/// Compares whole chunks without a branch, and searches only the first matching chunk for the position.
#[inline(always)]
fn place_of_body<T: Token<S>, const S: usize>(tokens: &[[u8; S]], wanted: T::Lane) -> Option<usize> {
    const CHUNK_TOKENS: usize = 64;
    let mut first = 0;
    for chunk in tokens.as_chunks::<CHUNK_TOKENS>().0 {
        if chunk.iter().fold(false, |any, token| any | (T::lane(*token) == wanted)) {
            break;
        }
        first += CHUNK_TOKENS;
    }
    tokens[first..].iter().position(|token| T::lane(*token) == wanted).map(|place| first + place)
}

/// Returns the index of the first token that does not fit. Called only if there is one.
#[cold]
fn first_misfit<C: Conversion<S, D>, const S: usize, const D: usize>(source: &[u8]) -> usize {
    let (tokens, _) = source.as_chunks::<S>();
    tokens.iter().position(|token| C::misfit(*token) != C::Misfit::default()).unwrap_or(tokens.len())
}
