//! Formats of token files: where in a file the tokens lie, and of which type they are.
//!
//! A format is told by its magic number, then by the files next to it, else the file is a raw stream. Files
//! that are known to be something else are refused by name: read as raw tokens they would give plausible
//! nonsense.
//!
//! ```text
//! open ──┬── npy, llmc, raw ────────> TokenLayout
//!        ├── megatron (.idx, .bin) ─> TokenLayout + SequenceTables ─┐
//!        ├── datatrove (.ds, …) ────> TokenLayout + DocumentEnds ───┴─> DocumentTable
//!        └── refused: what looks like tokens and is something else
//! ```
//!
//! A new format: a file of its own that reads a [`TokenLayout`](layout::TokenLayout), its word in
//! [`Format`](layout::Format), its magic in [`open`](fn@open::open), and its row in the tests.

pub mod datatrove;
pub mod documents;
pub mod layout;
pub mod llmc;
pub mod megatron;
mod npy;
pub mod open;
mod refused;
