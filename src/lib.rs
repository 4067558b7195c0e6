//! `pagestream`: token files and safetensors weights, mapped.
//!
//! `ARCHITECTURE.md` has the picture. Floors, lowest first; a room uses only rooms below it:
//! [`error`], [`dtype`] · [`os`] · [`mapped_file`] · [`tokens`], [`weights`], [`gather`] · `python`.

pub mod dtype;
pub mod error;
pub mod mapped_file;
pub mod os;
#[cfg(feature = "python")]
mod python;
pub mod weights;
