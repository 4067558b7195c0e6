//! Every system call. Unsafe island 1: pointers into mapped memory stay inside this room, and what
//! leaves it are range-checked copies.
//!
//! **Why no `&[u8]` over a mapping.** A mapped file can be changed or cut by another process at any
//! moment. A Rust slice promises that its bytes do not change, so one over a mapping would be
//! undefined behaviour, and touching a page that the file no longer has raises SIGBUS. [`memory::map::Region`]
//! therefore keeps a raw pointer and gives bytes out by [`fault::copy()`], which survives the signal,
//! or as an address that Python's buffer protocol passes on.
#![allow(unsafe_code)] // Island 1: each block names the check that makes it true.

pub mod errno;
pub mod fault;
pub mod file;
pub mod memory;
pub mod process;
