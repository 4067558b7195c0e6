//! Every system call. Unsafe island 1.
//!
//! **What it promises.** Pointers into mapped memory stay inside this room; range-checked copies leave it, and
//! addresses that Python's buffer protocol passes on. Errors are the system's numbers ([`errno`]): the rooms above add
//! the path and the advice. Only damage to a mapping, of which the caller may have forgotten the path, is an error of
//! its own.
//!
//! **Why no `&[u8]` over a mapping.** Another process can change or cut a mapped file at any moment. A Rust slice
//! promises that its bytes do not change, so a slice over a mapping would be undefined behaviour, and touching a page
//! that the file no longer has raises SIGBUS. [`memory::map::Region`] therefore keeps a raw pointer and copies bytes
//! out by [`fault::copy()`], which survives the signal.
//!
//! | room | what lives there |
//! |---|---|
//! | [`mod@file`] | opening files, also confined to a folder; positioned reads; file systems |
//! | [`memory`] | mappings, anonymous blocks, write-only memory; advice and residency |
//! | [`fault`] | bus errors, in copies and in memory that was handed out |
//! | [`process`] | forks, limits, usage |
#![allow(unsafe_code)] // Island 1: each block names the check that makes it true.

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("pagestream supports Linux on x86-64 and aarch64");

pub mod errno;
pub mod fault;
pub mod file;
pub mod memory;
pub mod process;
