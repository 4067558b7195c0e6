//! Reads whole tensors and parts of tensors into owned memory, in the order of the plan.
//!
//! ```text
//!   wants (file, bytes, selection), in order
//!        │
//!   plan::groups      joins neighbours, cuts what is large into pieces      (pure)
//!        │
//!   engine::Stream
//!        begin the next group ──> pieces ──> crew: pread ──> part of the group's memory
//!               ▲ budget                                        │
//!               └──── next() gives credit back <──── landed, in order ────> consumer
//! ```
//!
//! A group is the unit of memory: one large tensor, or neighbours in a file of at most [`plan::GROUP_BYTES`] in all.
//! A piece is the unit of reading: the work of one thread.
//!
//! ```text
//!   group   waiting ──(room in the budget)──> reading ──(its last piece is read)──> landed ──next()──> handed out
//! ```
//!
//! **What it promises.** Tensors come in the order of the wants, each as soon as its bytes are there. Memory
//! beyond the consumer's own is at most the budget. A larger group is read alone, once the consumer waits for it. The
//! file's identity is checked after the last byte of a group was read. An error takes the place of a truncated or
//! rewritten tensor. An error ends the reading. It comes after the tensors that have landed, to each consumer that asks
//! for more.
//! [`engine::Stream::close`] waits for threads in a read, but not for ever.
//!
//! Groups have memory of their own, or, where the bytes are on their way to a device, lie in memory that the caller gave
//! ([`staging`]): there the next ones are read once the caller has given room back.
//!
//! A stream may have its tensors inspected: the thread that reads a group's last piece shows the bytes to a function, and
//! a refusal takes the place of the tensor, after all tensors before it.
//!
//! **The lead** serves a consumer that asks for the tensors of a file one by one and names no plan:
//!
//! ```text
//!   a request ──> guess::Guess: what will be asked for next ──> lead::Lead ──┬─ a thread advises: into the page cache
//!                                                                            └─ a Stream: into memory of its own
//!   close ──> idle::IdleStore: the file and its lead, for a moment ──> the next opening, or nothing
//! ```
//!
//! **The lead of [`warm`]** knows its plan, and has no consumer yet:
//!
//! ```text
//!                      ┌─ reads come out of the page cache ──> cache_fill::CacheFill: until all is there, or memory is full
//!   wants ──> WarmLead ┤
//!                      └─ they do not ──> a Stream, whose tensors wait for a request, or for another stream
//! ```
//!
//! A requested tensor is read next, in addition to the tensors in memory. A stream takes the present tensors, and reads the
//! rest by itself. So no byte is read twice.
//!
//! [`strategy`] decides between views, the page cache and memory of a stream's own, which is read through the page cache or,
//! where a timed trial shows that this is much faster, past it.
//!
//! **Callers:** the binding, at `Stream` (a plan is known), at `Lead` (it is not), and at `WarmLead` (it is known, and its
//! consumer is not).

mod benefit;
pub mod cache_fill;
pub mod continued;
pub mod engine;
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
pub mod options;
pub mod pace;
pub mod pieces;
pub mod plan;
mod reach;
mod rows;
mod run;
pub mod sample;
pub mod small_file;
mod staged;
pub mod staging;
mod state;
pub mod strategy;
mod stride;
mod trial;
mod turns;
mod uses;
pub mod warm;
