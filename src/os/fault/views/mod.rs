//! Guarded mappings: memory that is handed out. NumPy and torch touch it by instructions of their own, which cannot
//! be led to a landing. When such a page cannot be read, zeros take its place, so that the instruction goes on.
//!
//! **What it promises.** Zeros never pass for data: before there are any, the mapping is marked damaged, for good.
//! Whoever hands out more of it, or copies out of it, looks at the mark afterwards; [`set_hook`] lets the program
//! know at once, and [`untold_damage`] says what was damaged, once each, also when the mapping is gone by then.
//!
//! **Who may call it.** [`crate::os::memory::map`] enters each mapping as it is made and takes it out before it is
//! unmapped; the handler finds and marks them; `mapped_file` asks.
//!
//! **The table** (`table.rs`) is a list of chunks of slots that only grows, because a handler may be reading it at any
//! time. A slot is guarded by a sequence lock that readers never wait for:
//!
//! ```text
//!        claim: +1        claim: +1         release: +2
//!  free ──────────► being ──────────► in use ──────────► free
//!  4n               written 4n + 1    4n + 2             4n + 4
//! ```
//!
//! A reader loads the number, then the fields, then the number again; they belong together if both numbers are the
//! same 4n + 2. One thread at a time writes numbers, under the lock of the table. The handler only lowers `damage`
//! and raises `damage_end`, in slots whose mapping the faulting instruction keeps alive.

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod replace;
mod table;

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(in crate::os::fault) use replace::replace;
pub(in crate::os) use table::lock;
pub use table::{Damage, Guard, Guarded, set_guarding, set_hook, untold_damage};
