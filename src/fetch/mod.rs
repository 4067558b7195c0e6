//! Reads ahead of use: this module decides which bytes to read, with how many threads, and how much at a time. Batches,
//! slices and streams of tensors build on it.
//!
//! ```text
//!   what the caller will need, in its order
//!        │
//!   ranges::Merge      joins neighbours by one rule                     (pure)
//!        │
//!   ahead::Ahead ───── WILLNEED ─────> page cache     asks for what is not cached, or for nothing
//!        │                                 │
//!   crew::Crew ─────── Work::step ─── copy or pread ──> buffers::Pool ──> consumer
//!        │  slow: all threads              ▲                                 │
//!        │  calm: `Limits::first`          │                                 │
//!   KeepGoing                        budget::Budget <──── give_back ─────────┘
//! ```
//!
//! **Guarantees of each part.**
//!
//! * [`ranges`]: the merged ranges consist of the parts and the gaps that the rule allows. Merging keeps the order, and
//!   allocates nothing for parts that are not joined.
//! * [`ahead`]: requests no range that is known to be cached, and every other range of a mapped file. It trusts a cache
//!   that has held many ranges in a row. It then looks up one range of each batch, until one is not cached. Advice is
//!   never an error.
//! * [`crew`]: contains the only definition of *slow*: a quarter of the items made their thread wait ([`crew::Wait`]).
//!   While storage is slow, the crew uses all threads that its limits allow. When it is calm, the additional threads
//!   leave. Each item is done once, and all threads end with the work. The crew asks the caller every [`crew::PERIOD`],
//!   in the caller's own thread, whether to continue.
//! * [`background`]: ends its threads when its owner is dropped, and in a forked child leaves the parent's threads
//!   alone.
//! * [`budget`]: has room while less than the limit is in flight. The consumer gives credit back. The limit doubles,
//!   and can start anew.
//! * [`buffers`]: a buffer returns to its pool when its last user drops it, and never before.
//!
//! ```text
//!   crew   begins slow
//!          slow ──(32 items, fewer than a quarter waited, or the cache is warm)──> calm
//!          calm ──(a quarter of the items waited)────────────────────────────────> slow
//!   ahead  looking ──(256 ranges in a row were cached)──> trusting ──(one was not)──> looking
//! ```
//!
//! No part opens a file, knows a format or touches Python. Modules from floor 3 up may use this one.

pub mod ahead;
pub mod background;
pub mod budget;
pub mod buffers;
pub mod crew;
pub mod next;
pub mod ranges;
