//! Batches of windows.

pub mod assemble;
