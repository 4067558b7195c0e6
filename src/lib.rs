//! `pagestream`: token files and safetensors weights, mapped.
//!
//! `ARCHITECTURE.md` has the picture. Floors, lowest first; a room uses only rooms below it:
//! [`error`], [`dtype`], [`parallel`] · [`os`] · [`mapped_file`] · [`tokens`], [`weights`], [`sampling`],
//! [`gather`] · `python`.

pub mod batching;
pub mod dtype;
pub mod error;
pub mod gather;
pub mod mapped_file;
pub mod os;
pub mod parallel;
#[cfg(feature = "python")]
mod python;
pub mod sampling;
pub mod tokens;
pub mod weights;
