//! Formats of token files: place and type of the tokens in a file.
//!
//! The magic number decides the format, then the files next to it do; any other file is a raw stream. Files that
//! are known to be something else are rejected by name: read as raw tokens they would give plausible nonsense.
//!
//! ```text
//! open ──┬── npy, llmc, raw ────────> TokenLayout
//!        ├── megatron (.idx, .bin) ─> TokenLayout + TokenIndex: DocumentSequences, SequenceOrder
//!        ├── datatrove (.ds, …) ────> TokenLayout + TokenIndex: DocumentEnds
//!        ├── refused: files that look like tokens and are something else
//!        └── width: tokens of another width than the one asked for
//! ```
//!
//! A [`checked_index`] is checked once while the file stays as it is.
//!
//! `ARCHITECTURE.md` says what a new format needs.

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
