//! Reads whole tensors and parts of tensors into owned memory, in the order of a plan.
//!
//! ```text
//!   wants (file, bytes, selection), in order
//!        │
//!   plan::groups      joins neighbours, cuts large tensors into pieces      (pure)
//!        │
//!   engine::Stream
//!        begin the next group ──> pieces ──> crew: pread ──> part of the group's memory
//!               ▲ budget                                        │
//!               └──── next() gives credit back <──── landed, in order ────> program
//! ```
//!
//! A want is one tensor of the plan, or a part of one. A group is the unit of memory: one large tensor, or neighbours
//! in a file with at most [`plan::GROUP_BYTES`] in total. A piece is the unit of reading: one thread reads it.
//!
//! ```text
//!   group   waiting ──(the budget has room)──> reading ──(the last piece is read)──> landed ──next()──> handed out
//! ```
//!
//! **What it promises.** Tensors arrive in the order of the wants, each as soon as its bytes are there. Apart from the
//! memory that the program holds, a stream uses at most its budget. It reads a group larger than the budget alone, once
//! the program waits for it. It checks the file's identity after it has read the last byte of a group. A truncated or
//! rewritten tensor yields an error instead. An error ends the reading: tensors that have landed still come first, then
//! every caller that asks for more gets the error. [`engine::Stream::close`] waits for threads that are in a read, but
//! only for a limited time.
//!
//! A group usually has its own memory. If the bytes are on their way to a device, groups lie in memory from the caller
//! ([`staging`]), and the stream continues when the caller has returned enough of it.
//!
//! A stream can inspect its tensors. The thread that reads the last piece of a group passes the bytes of each tensor to
//! a function. If the function refuses a tensor, the program gets the error in its place, after all tensors before it.
//!
//! [`strategy`] chooses between views, the page cache and owned memory. Reads into owned memory go through the page
//! cache, or past it if a timed trial shows that this is much faster.
//!
//! **Callers:** the binding, at [`engine::Stream`]; [`crate::leading`], which predicts the plan; [`crate::warming`],
//! which reads before the program asks.

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
