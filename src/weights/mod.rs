//! safetensors files: the header from bytes, one file of weights, parts of its tensors.

pub mod file;
pub mod header;
pub mod slice;
pub mod tensor;
