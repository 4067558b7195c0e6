//! Token files: their formats, many files as one sequence of tokens, and windows on it.
//!
//! ```text
//! paths ── format/ ──> one file: layout, document table
//!            └── corpus ──> many files: one axis; pieces of shards, views, copies, fingerprint
//!                  ├── part: the same files, fewer tokens
//!                  ├── documents: places of the axis where documents begin
//!                  └── windows: from a window's number to its tokens; arithmetic alone
//! ```
//!
//! Opening checks headers, sizes and the ends of side files, in parallel, and reads nothing else. Data and the middle
//! of an index are checked when they are read. Files beyond a limit are closed and opened again when they are needed.
//! It is an error if the file has been replaced by then. Callers: `batching`, the binding.

pub mod corpus;
mod corpus_files;
pub mod documents;
mod fingerprint;
pub mod format;
mod part;
pub mod windows;
