//! Reads the tensors of a plan before any consumer asks for them: `Checkpoint.warm`.
//!
//! ```text
//!                     ┌─ reads come out of the page cache ──> cache_fill::CacheFill: until all is there, or memory is full
//!   wants ──> Warming ┤
//!                     └─ they do not ──> a Stream, whose tensors wait for a request, or for another stream
//! ```
//!
//! **What it promises.** No byte is read twice. A requested tensor is read next, in addition to the tensors in memory. A
//! [`continued::ContinuedStream`] takes the tensors that are present, and reads the rest by itself.
//!
//! **Callers:** the binding, at [`warm::Warming`] and [`continued::ContinuedStream`].

mod cache_fill;
pub mod continued;
pub mod warm;
