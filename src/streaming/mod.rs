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
//! [`strategy`] decides between views, the page cache and memory of a stream's own, which is read through the page cache or,
//! where a timed trial shows that this is much faster, past it.
//!
//! **Callers:** the binding, at [`engine::Stream`]; [`crate::leading`], which guesses the plan; [`crate::warming`], whose
//! consumer comes later.

pub mod engine;
pub mod options;
pub mod pace;
pub mod pieces;
pub mod plan;
mod reach;
pub mod sample;
mod staged;
pub mod staging;
mod state;
pub mod strategy;
mod trial;
mod turns;
