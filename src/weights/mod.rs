//! safetensors files: the header from bytes, and checkpoints over mapped files.

pub mod file;
pub mod header;
