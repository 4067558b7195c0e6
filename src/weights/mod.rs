//! safetensors files: the header from bytes, one file of weights, parts of its tensors.

mod catalog;
pub mod checkpoint;
pub mod file;
pub mod header;
pub mod index;
mod json;
mod last_wins;
pub mod locate;
mod mistaken;
pub mod natural;
mod open;
mod report;
pub mod strictness;
mod tally;
pub mod tensor;
