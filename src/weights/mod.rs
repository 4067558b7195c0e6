//! safetensors files: the header from bytes, one file of weights, parts of its tensors.

pub mod checkpoint;
pub mod file;
pub mod header;
pub mod index;
mod merge;
pub mod natural;
mod problems;
mod scan;
pub mod source;
mod table;
pub mod tensor;
