//! Bus errors. A page of a mapping that its file cannot give (the file shrank, its disk or server
//! failed) raises SIGBUS in whoever touches it. [`copy()`] survives that; this module has the handler
//! that makes it so, and its manners towards other handlers in the process:
//!
//! 1. It acts only on a fault (`si_code > 0`) at an instruction of our copy routine, or in a mapping of ours whose
//!    memory others have ([`views`]). Everything else, signals sent by hand above all, goes to the handler that was
//!    there before.
//! 2. It stands in front: [`ready`] looks before each read or batch, and steps in front of a handler
//!    that came later (`faulthandler.enable()`, `signal.signal`, the one that torch's `DataLoader`
//!    puts into its workers). Behind any of these a fault would kill or loop for ever.
//! 3. It reads and writes atomics and calls only async-signal-safe functions (signal-safety(7)).
//!
//! Others keep us as their predecessor, too, and put us back when they leave. So each time that we step
//! in front of a handler that is new to us, it is by another entry function, which keeps that one for its
//! predecessor. A thread that comes to the same entry again, while it is still in that entry's chain, is
//! going in circles and gets the default action.

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod copy;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod handler;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod views;

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub use self::{
    copy::copy,
    handler::{forked, ready, set_enabled, stand_in_front, stay_in_front},
};

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod unsupported {
    /// No copy routine for this target: [`ready`] says so, and readers use `pread`.
    ///
    /// # Safety
    /// Trivially safe: it copies nothing.
    pub unsafe fn copy(_destination: *mut u8, _source: *const u8, length: usize) -> usize {
        length
    }
    pub fn ready() -> bool {
        false
    }
    pub fn stand_in_front() -> bool {
        false
    }
    pub fn stay_in_front() {}
    pub fn forked() {}
    pub fn set_enabled(_enabled: bool) {}
}
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub use self::unsupported::{copy, forked, ready, set_enabled, stand_in_front, stay_in_front};
