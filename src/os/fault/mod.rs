//! Bus errors. If a file cannot supply a page of its mapping (the file was truncated, or its disk or server failed),
//! the thread that accesses the page gets SIGBUS. This module lets the process survive the signal.
//!
//! **Guarantees.** A fault in [`copy()`] ends that copy and nothing else. At a fault of any other instruction, in
//! memory that we handed out, the handler maps zeros, marks the mapping as damaged for good ([`views`]) and reports the
//! damage. Every other SIGBUS reaches the handler that would have received it without us. The handler reads and writes
//! atomics and calls only async-signal-safe functions (signal-safety(7)).
//!
//! **Callers.** Code that copies from a mapping calls [`install_and_check`] in its thread first. Code that hands out
//! memory calls [`reinstall`], or [`reinstall_sometimes`] if it hands out memory many times per batch.
//!
//! **Path of a signal** (`handler.rs`, `chain.rs`):
//!
//! ```text
//!  SIGBUS ─► entry n ─┬─ our mark (a thread is to be woken) ──────────────► return
//!                     ├─ fault at an instruction of copy()  ──────────────► continue at its landing
//!                     ├─ fault in a guarded mapping ─► zeros, damage, hook ► return
//!                     └─ anything else ─► predecessor of entry n ─────────► return
//!                                         (already inside it: the default action)
//! ```
//!
//! **Entries** (`install.rs`). A handler that is installed after ours (`faulthandler.enable()`, `signal.signal`, or
//! torch's `DataLoader` in its workers) would kill the process at our faults, or loop forever. Each relevant call
//! therefore checks whether our handler is still in front. If not, it installs an entry over the newcomer, which
//! becomes that entry's predecessor for good:
//!
//! ```text
//!  at first          entry 0 ─► default
//!  faulthandler      faulthandler ─► entry 0 ─► default
//!  reinstall()       entry 1 ─► faulthandler ─► entry 0 ─► default
//!  it leaves again   entry 0 ─► default                (it restores what it had found: entry 0)
//! ```
//!
//! **SIGSEGV** (`read_only.rs`). A write to pages that were handed out read-only ends the process, after a line that
//! names the file.

mod chain;
mod copy;
mod handler;
mod install;
mod read_only;
pub mod views;

pub use copy::copy;
pub use install::{
    forked, install_and_check, reinstall, reinstall_sometimes, set_fault_guard, wake_first_thread,
};
pub use read_only::tell_of_writes;

use crate::words::words;

words! {
    /// The faults that the SIGBUS handler turns into exceptions.
    pub enum FaultGuard as "PAGESTREAM_FAULT_GUARD" {
        /// Faults in our copies, and in memory that we handed out.
        On = "on",
        /// Only faults in our copies.
        Copies = "copies",
        /// None: nothing is installed, [`install_and_check`] returns `false`, and readers use `pread`.
        Off = "off",
    }
}
