//! Bus errors. If a file cannot supply a page of its mapping (the file shrank, its disk or server failed), the
//! thread that accesses the page gets SIGBUS. With this room the process survives it.
//!
//! **What it promises.** A fault in [`copy()`] ends that copy and nothing else. A fault at any other instruction,
//! in memory of ours that was handed out, is answered with zeros, marks that mapping damaged for good ([`views`])
//! and is reported. Every other SIGBUS reaches the handler that would have received it without us. The handler
//! reads and writes atomics and calls only async-signal-safe functions (signal-safety(7)).
//!
//! **Callers.** Code that copies out of a mapping calls [`install_and_check`] in its thread first. Code that hands
//! out memory calls [`reinstall`], or [`reinstall_sometimes`] if it does so many times a batch.
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
//! **Entries** (`install.rs`). Handlers that come later (`faulthandler.enable()`, `signal.signal`, torch's
//! `DataLoader` in its workers) would kill the process, or loop forever, at a fault of ours. So each relevant call
//! checks whether our handler is still in front. If not, it installs an entry over the newcomer, which becomes
//! that entry's predecessor for good:
//!
//! ```text
//!  at first          entry 0 ─► default
//!  faulthandler      faulthandler ─► entry 0 ─► default
//!  reinstall()       entry 1 ─► faulthandler ─► entry 0 ─► default
//!  it leaves again   entry 0 ─► default                (it restores what it had found: entry 0)
//! ```
//!
//! **SIGSEGV** (`read_only.rs`). A write to pages that were handed out read-only ends the process, after a line that names
//! the file.

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
    /// The faults that the handler of SIGBUS turns into exceptions.
    pub enum FaultGuard as "PAGESTREAM_FAULT_GUARD" {
        /// Faults in our copies, and in memory that was handed out.
        On = "on",
        /// Faults in our copies alone.
        Copies = "copies",
        /// None: nothing is installed, [`install_and_check`] returns `false`, and readers use `pread`.
        Off = "off",
    }
}
