//! Reads ahead of a program that asks for the tensors of a file one by one, and names no plan.
//!
//! ```text
//!   a request ──> guess::Guess: what will be asked for next ──> lead::Lead ──┬─ a thread advises: into the page cache
//!                                                                            └─ a Stream: into memory of its own
//!   close ──> idle::IdleStore: the file and its lead, for a moment ──> the next opening, or nothing
//! ```
//!
//! **What it promises.** A lead never changes what a request returns, only when its bytes arrive. Bytes that it reads in
//! vain are at most twice those that were used. An error of the lead is raised for the tensor whose bytes it met, or not at
//! all.
//!
//! **Callers:** the binding, at [`lead::Lead`] and [`idle::IdleStore`].

mod benefit;
mod expected;
pub mod file_tensors;
pub mod guess;
pub mod idle;
pub mod lead;
pub mod lead_count;
pub mod lead_cursor;
mod lead_file;
pub mod lead_streams;
mod left_out;
mod rows;
mod run;
pub mod small_file;
mod stride;
mod uses;
