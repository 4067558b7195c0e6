//! Batches of windows: one batch with given numbers ([`assemble::assemble`]), or a stream of batches that are made
//! ahead of their use ([`pipeline::Pipeline`]).
//!
//! ```text
//!   planner ──plan──> ring ──claim──> gatherers ──finish──> ring ──take──> consumer
//!     │                                  │                                   │
//!     │ asks for pages                   │ copy and widen rows               │ fills a chunk itself where
//!     └ fetch::ahead                     └ row.rs, crate::widen              └ it would have to wait
//! ```
//!
//! **The states of a batch.** `ring.rs` alone changes them; `threads.rs` wakes the threads for which a change
//! is news.
//!
//! ```text
//!   planned ──claim──> filling ──all chunks filled──> done ──take──> taken
//!      │                  │ │                            ▲
//!      │                  │ └─read without a mapping─> checking ──all files checked
//!      └──────────────────┴─an error, also in checking─> done, as the error ──take──> taken
//! ```
//!
//! * *Planned*: its windows are known and their pages are asked for. At most as many batches as the lookahead.
//! * *Filling*: it has a buffer of the pool, whose chunks are claimed by threads. While storage is slow a
//!   chunk is one row, so that many threads wait side by side; otherwise about a MiB. A batch has at most 1024 chunks.
//! * *Checking*: the gatherers ask the server once more about each file that they read without a mapping.
//! * *Taken*: in the order of the stream. The buffer returns to the pool when the last array on it dies.
//!
//! Two lengths adapt, in `Ring::take` and `Ring::set_warm`: the lookahead and the number of slots double when
//! the consumer waited for a batch that in turn had waited for storage, up to the budget of `sizes.rs`, and
//! start anew once the cache is warm. The number of gatherers follows [`crate::fetch::crew`].
//!
//! What the room promises: no batch changes under its user; a batch whose file was cut or rewritten is an
//! error; an error comes in place of its batch, and after it the caller starts another pipeline; closing ends all threads, but
//! for one that hangs in a read; a fork touches no lock of its parent. No thread of a pipeline knows Python.
//!
//! The files, in reading order: `options`, `sizes` and `layout` (what is set and worked out once), `plan`
//! (windows of batches), `planner`, `ring`, `threads`, `gatherer`, `row`, `pipeline`, `metrics`; `assemble` stands apart.

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
