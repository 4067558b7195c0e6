//! Batches of windows: one at a time for who has the numbers, or a stream of them made ahead.

mod gatherer;
pub mod layout;
pub mod lookahead;
pub mod metrics;
pub mod pipeline;
pub mod plan;
mod planner;
pub mod pool;
mod ring;
pub mod row;
mod sizes;
mod threads;
