//! The process: forks, threads, credentials, limits, and the resources that a thread has used.
//!
//! **Forks.** A child has its parent's memory and one of its threads. [`fork::section`] keeps forks out while a lock is
//! held, [`atfork::register`] makes forks wait for sections, and [`fork::generation`] distinguishes parent and child.
//! Any module may take a section. Nothing inside a section may wait for storage, for another section, or for Python.

pub mod atfork;
pub mod credentials;
pub mod fork;
pub mod limits;
pub mod parallel;
pub mod thread;
pub mod usage;
