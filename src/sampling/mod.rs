//! Which window comes when. Pure arithmetic: sees no file.

pub mod blocked;
pub mod key;
pub mod mixture;
pub mod order;
pub mod permutation;
pub mod schedule;

/// Version of the orders, for saved states: a change of any order, draw or mixture raises it.
pub const ORDER_VERSION: u32 = 1;
