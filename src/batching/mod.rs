//! Batches of windows: one at a time for who has the numbers, or a stream of them made ahead.

pub mod assemble;
pub mod feed;
pub mod layout;
pub mod lookahead;
pub mod metrics;
pub mod pipeline;
pub mod pool;
mod stages;
mod worker;
