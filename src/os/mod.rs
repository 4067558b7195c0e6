//! Every system call. Unsafe island 1.
//!
//! **Guarantees.** Pointers into mapped memory stay inside this module. Only range-checked copies leave it, and the
//! addresses that Python's buffer protocol passes on. Errors are the system's numbers ([`errno`]): the modules above
//! add the path and the advice. Only damage to a mapping has an error of its own, because the caller may no longer know
//! the path.
//!
//! **Why no `&[u8]` over a mapping.** Another process can change or truncate a mapped file at any moment. A Rust slice
//! promises that its bytes do not change, so a slice over a mapping would be undefined behaviour. Touching a page that
//! the file no longer has raises SIGBUS. [`memory::map::Region`] therefore keeps a raw pointer and copies bytes out
//! with [`fault::copy()`], which survives the signal.
//!
//! | module | contents |
//! |---|---|
//! | [`mod@file`] | opening files, also confined to a folder; positioned reads; file systems |
//! | [`memory`] | mappings, anonymous blocks, write-only memory; advice and residency |
//! | [`fault`] | bus errors, in copies and in memory that we handed out |
//! | [`process`] | forks, limits, usage |
#![allow(unsafe_code)] // Island 1: each block names the check that makes it true.

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("pagestream supports Linux on x86-64 and aarch64");

pub mod errno;
pub mod fault;
pub mod file;
pub mod memory;
pub mod process;
