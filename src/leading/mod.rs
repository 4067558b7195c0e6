//! Reads ahead of a program that requests the tensors of a file one by one and never states a plan.
//!
//! ```text
//!   a request ──> guess::Guess: predicts the next requests ──> lead::Lead ──┬─ a thread advises: into the page cache
//!                                                                           └─ a Stream: into owned memory
//!   close ──> idle::IdleStore: keeps the file and its lead for a moment ──> the next opening, or dropped
//! ```
//!
//! A *lead* is the read-ahead of one file. The modules answer three questions:
//!
//! * Which tensors will the program request next, and which parts of them? [`guess`] predicts them. It knows the
//!   tensors ([`file_tensors`]) and the requests so far ([`uses`]). It recognises skipped series ([`left_out`]),
//!   skipped layers ([`stride`]) and rows of requests with equal lengths ([`rows`]).
//! * How far ahead should the lead read? [`lead_cursor`] decides for the page cache, [`lead_streams`] for streams, and
//!   [`lead_file`] limits both. [`benefit`] prevents streams that the program would not use. [`run`] ends a lead where
//!   another lead of the same file begins.
//! * How many leads may there be? [`lead_count`].
//!
//! **What it promises.** A lead never changes the result of a request, only when its bytes arrive. It wastes at most
//! two bytes for each byte that the program has used. An error of the lead is raised for the tensor that contains the
//! failed bytes, or not at all.
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
