//! Guarded mappings: memory that we hand out. NumPy and torch access it with their own instructions, which the handler
//! cannot divert to a landing. If such a page is unreadable, the handler maps zeros in its place, so that the
//! instruction continues.
//!
//! **Guarantees.** Zeros never pass for data: the handler marks the mapping as damaged, for good, before it maps zeros.
//! Code that hands out or copies from the mapping checks the mark afterwards. The handler calls the hook of
//! [`set_hook`] at once, and [`untold_damage`] returns each damage once, even if the mapping is gone by then.
//!
//! **Callers.** [`crate::os::memory::map`] registers each mapping when it is made and removes it before unmapping it.
//! The signal handler finds and marks mappings. `mapped_file` reads the marks.
//!
//! **The table** (`table.rs`) is a list of slots that only grows, because a handler may read it at any time. Each slot
//! has a sequence lock, and its readers never wait:
//!
//! ```text
//!        claim: +1        claim: +1         release: +2
//!  free ──────────► being ──────────► in use ──────────► free
//!  4n               written 4n + 1    4n + 2             4n + 4
//! ```
//!
//! A reader loads the number, then the fields, then the number again. The fields belong together if both numbers are
//! the same 4n + 2. One thread at a time writes numbers, under the table's lock. The handler only lowers `damage` and
//! raises `damage_end`, and only in slots whose mapping the faulting instruction keeps alive.

mod replace;
mod table;

pub(in crate::os::fault) use replace::replace;
pub(in crate::os) use table::lock;
pub use table::{Guard, Guarded, set_hook, untold_damage};
pub(in crate::os::fault) use table::{IS_GUARDING, with_path_of_read_only};
pub(super) use table::{call_hook_in_child, forked};
