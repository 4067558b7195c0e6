//! Reads the tensors of a plan before the program asks for them: `Checkpoint.warm`.
//!
//! ```text
//!                     ┌─ reads go through the page cache ──> cache_fill::CacheFill: until done, or memory is full
//!   wants ──> Warming ┤
//!                     └─ reads go past it ──> a Stream, whose tensors wait for a request, or for another stream
//! ```
//!
//! **What it promises.** No byte is read twice. A requested tensor is read next, in addition to the tensors in memory.
//! A [`continued::ContinuedStream`] takes the tensors that are present, and reads the rest itself.
//!
//! **Callers:** the binding, at [`warm::Warming`] and [`continued::ContinuedStream`].

mod cache_fill;
pub mod continued;
pub mod warm;
