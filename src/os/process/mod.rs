//! The process: forks, threads, credentials, limits, and the resources that a thread has used.
//!
//! **Forks.** A child has the memory of its parent and one of its threads. [`fork::section`] keeps forks out while a
//! lock is held, [`atfork::register`] makes forks wait for sections, [`fork::generation`] tells parent and child apart.
//! Any room may take a section; nothing inside a section may wait for storage, for another section, or for Python.

pub mod atfork;
pub mod credentials;
pub mod fork;
pub mod limits;
pub mod parallel;
pub mod thread;
pub mod usage;
