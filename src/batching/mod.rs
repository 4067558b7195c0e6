//! Batches of windows: either one batch of given windows ([`assemble::assemble`]), or a stream of batches prepared
//! ahead of their use ([`pipeline::Pipeline`]).
//!
//! ```text
//!   planner ──plan──> ring ──claim──> gatherers ──finish──> ring ──take──> consumer
//!     │                                  │                                   │
//!     │ asks for pages                   │ copy and widen rows               │ fills a chunk itself where
//!     └ fetch::ahead                     └ row.rs, crate::widen              └ it would have to wait
//! ```
//!
//! **The states of a batch.** Only `ring.rs` changes them; `threads.rs` wakes the threads that a change concerns.
//!
//! ```text
//!   planned ──claim──> filling ──all chunks filled──> done ──take──> taken
//!      │                  │ │                            ▲
//!      │                  │ └─read without a mapping─> checking ──all files checked
//!      └──────────────────┴─an error, also in checking─> done, as the error ──take──> taken
//! ```
//!
//! * *Planned*: its windows are known and their pages are requested. The lookahead limits the number of such batches.
//! * *Filling*: it has a buffer from the pool, and threads claim its chunks. While storage is slow, a chunk is one row,
//!   so that many threads wait in parallel; otherwise it is about a MiB. A batch has at most 1024 chunks.
//! * *Checking*: the gatherers ask the server once more about each file that they read without a mapping.
//! * *Taken*: in the order of the stream. The buffer returns to the pool when the last array over it dies.
//!
//! Two lengths adapt, in `Ring::take` and `Ring::set_warm`: the lookahead and the number of slots. They double when the
//! consumer waited for a batch that in turn had waited for storage, up to the budget of `sizes.rs`. They start again
//! from their first limits once the cache is warm. The number of gatherers follows [`crate::fetch::crew`].
//!
//! **Guarantees.** No batch changes while it is in use. A batch whose file was truncated or rewritten is an error. An
//! error replaces its batch; afterwards the caller starts another pipeline. Closing ends all threads, except one that
//! hangs in a read. A forked child touches no lock of its parent. No thread of a pipeline knows Python.
//!
//! The files, in reading order: `options`, `sizes` and `layout` (values that are set and computed once), `plan`
//! (windows of batches), `planner`, `ring`, `threads`, `gatherer`, `row`, `pipeline`, `metrics`. `assemble` is
//! independent.

pub mod assemble;
mod gatherer;
pub mod layout;
pub mod metrics;
pub mod options;
pub mod pipeline;
pub mod plan;
mod planner;
mod ring;
pub mod row;
mod sizes;
mod threads;
