//! `pagestream`: token files and safetensors weights, mapped.
//!
//! `ARCHITECTURE.md` has the picture. Floors, lowest first; a room uses only rooms below it: [`error`], [`words`],
//! [`dtype`], [`parallel`], `mix`, [`natural`] · [`os`] · [`mapped_file`] · [`fetch`] · [`tokens`], [`sampling`], [`widen`],
//! [`slicing`], [`weights`] · [`batching`] · `python`.

pub mod batching;
pub mod dtype;
pub mod error;
pub mod fetch;
pub mod mapped_file;
mod mix;
pub mod natural;
pub mod os;
pub mod parallel;
#[cfg(feature = "python")]
mod python;
pub mod sampling;
pub mod slicing;
pub mod tokens;
pub mod weights;
pub mod widen;
pub mod words;
