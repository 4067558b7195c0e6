//! The order of windows: pure arithmetic that sees no file.
//!
//! ```text
//! position ── schedule, mixture ──> source, epoch, index ── order ──> window
//!                       │                                     ├── shuffled: permutation
//!                       └── passes, phases, turns             ├── random: draws of a key
//!                                                             ├── blocked: extents, then windows of a group
//!                                                             └── sequential
//! ```
//!
//! Everything is a function of seed and position: no table grows with the number of windows, seeking works to any
//! position, and ranks do not matter. A change of an order increments [`ORDER_VERSION`], and a change of the turns of
//! sources increments [`mixture::MIXTURE_VERSION`]. Saved states carry both. Callers: `batching`, the binding.

pub mod blocked;
pub mod key;
pub mod mixture;
pub mod order;
pub mod permutation;
pub mod schedule;
mod turns;

/// Version of the orders, for saved states. Any change to an order or a draw of a source increments it.
pub const ORDER_VERSION: u32 = 1;
