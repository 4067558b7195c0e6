//! Reading ahead of use: which bytes, by how many threads, and how much at a time. Batches, slices
//! and streams of tensors stand on this room.
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
//! What each part promises:
//!
//! * [`ranges`]: the bytes of the merged ranges are those of the parts and the gaps that the rule allows. The
//!   order is kept, and nothing is allocated for parts that are not joined.
//! * [`ahead`]: no range that is known to be cached is asked for; every other one of a mapped file is. A cache that has held many ranges in a row is trusted: then one range of each lot
//!   is looked up, until one is not cached. Advice is never an error.
//! * [`crew`]: has the one definition of *slow*: a quarter of the items made their thread wait
//!   ([`crew::Wait`]). While storage is slow the crew has all threads that its limits allow; when it is calm
//!   the additional ones leave. Each item is done once, and all threads end with the work. The caller is asked
//!   every [`crew::PERIOD`] whether to go on, in its own thread.
//! * [`background`]: ends its threads when its owner goes, and leaves those of a parent alone in a child.
//! * [`budget`]: has room while less than the limit is in flight; the consumer gives credit back. The limit
//!   doubles and starts anew.
//! * [`buffers`]: a buffer returns to its pool when its last user drops it, and never before.
//!
//! ```text
//!   crew   begins slow
//!          slow ──(32 items, fewer than a quarter waited, or the cache is warm)──> calm
//!          calm ──(a quarter of the items waited)────────────────────────────────> slow
//!   ahead  looking ──(256 ranges in a row were cached)──> trusting ──(one was not)──> looking
//! ```
//!
//! No part opens a file, knows a format or touches Python. Rooms from floor 3 up may use this one.

pub mod ahead;
pub mod background;
pub mod budget;
pub mod buffers;
pub mod crew;
pub mod next;
pub mod ranges;
