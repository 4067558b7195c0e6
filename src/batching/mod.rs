//! Batches of windows: one at a time for who has the numbers, or a stream of them made ahead.

pub mod assemble;
pub mod feed;
mod gatherers;
pub mod layout;
pub mod lookahead;
pub mod metrics;
pub mod pipeline;
mod planner;
pub mod pool;
mod shared;
mod sizes;
mod worker;
