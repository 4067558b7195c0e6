//! Formats of token files: the position and type of the tokens in a file.
//!
//! The magic number determines the format, otherwise the files next to it do. Any other file is a raw stream. Files
//! that are known to be something else are rejected by name: read as raw tokens, they would give plausible nonsense.
//!
//! ```text
//! open ──┬── npy, llmc, raw ────────> TokenLayout
//!        ├── megatron (.idx, .bin) ─> TokenLayout + TokenIndex: DocumentSequences, SequenceOrder
//!        ├── datatrove (.ds, …) ────> TokenLayout + TokenIndex: DocumentEnds
//!        ├── refused: files that resemble tokens but are something else
//!        └── width: tokens whose width differs from the requested one
//! ```
//!
//! A [`checked_index`] is checked only once while the file stays unchanged.
//!
//! `ARCHITECTURE.md` explains how to add a format.

pub mod checked_index;
pub mod datatrove;
pub mod documents;
pub mod layout;
pub mod llmc;
pub mod megatron;
mod npy;
pub mod open;
mod refused;
pub mod sequences;
mod width;
