//! The process: forks, limits, and what it has used.

pub mod fork;
pub mod limits;
pub mod usage;
