//! safetensors files: the header from bytes, and checkpoints over mapped files.

pub mod checkpoint;
pub mod file;
pub mod header;
pub mod index;
mod merge;
pub mod natural;
mod problems;
pub mod source;
mod table;
