//! [`MappedFile`]: the one way to open a file.
//!
//! **Guarantees.** Any readable file can be opened: `mode.rs` falls back from a shared mapping to a private one, and
//! then to positioned reads. The file is opened once or, with `PAGESTREAM_SHARE=on`, taken from a process that has it
//! open (`offer.rs`), because on FUSE each further `open` drops the file's page cache. Its descriptor stays open as
//! long as the object; direct reads need a second one. The file is mapped once per protection. If a file is truncated
//! or rewritten, or its storage fails, every call that copies returns an error that says so; a view reports it as
//! damage, or in `check`. No call kills the process. A [`View`] keeps its mapping alive by itself: closing or
//! refreshing the file does not disturb it.
//!
//! **Five ways to read.**
//!
//! | call on [`Opened`] | source of the bytes | known to be the file's bytes | cost besides the copy | for |
//! |---|---|---|---|---|
//! | `read`, `read_into` | the mapping, else pread | on return, as far as `verify` can tell | one fstat | one range |
//! | `reader` | the mapping, else pread | after `finish`, likewise | one fstat for all ranges | many ranges, by one thread |
//! | `exact_reader` | pread, without read-ahead | after `finish`, likewise | two fadvise, one fstat for all ranges | a few scattered bytes, by any threads |
//! | `read_directly` | pread that bypasses the page cache, by a second descriptor | after `verify` | none | many bytes without another reader |
//! | `view`, `copy_on_write_view` | the mapping itself, not copied; nothing in `read` mode | never: `check` | none | arrays |
//!
//! `copy_into` is the copying step of a [`FileReader`], for a caller that keeps many files at hand. It checks nothing,
//! and the caller calls `verify` afterwards. Copies out of a mapping use a routine that survives bus errors, if
//! [`can_copy_from_mappings`] in that thread. Where the routine stops, pread either gets the bytes or finds the true
//! cause.
//!
//! **Three checks.**
//!
//! | call | asks | notices |
//! |---|---|---|
//! | `Opened::verify` | the kernel; for a mapped file also the server, but not on mounts without access times; the server after zeros at the end of a page | a truncation or a write, perhaps some seconds later |
//! | `Opened::verify_with_server` | the server, always once | the same, at once |
//! | `MappedFile::check` | the server about the descriptor, the kernel about the path | truncation, growth, a write, deletion, replacement, and damage to its mappings |
//!
//! Copies of tensors are handed out after `verify_with_server`: a tensor is read in chunks, and the file may change
//! between two chunks.
//!
//! Damage means that a page was unreadable when an array was used ([`crate::os::fault::views`]). Each call that hands
//! out memory also checks for it. A rewrite that keeps the size and the modification time passes all checks.
//!
//! **The files**, lowest first: `identity`, `direct` · `given_path` · `mode` · `origin`, `offer`, `view_counts` ·
//! `opened` · `hints` · `short_read` · `read`, `locking` · `tensor_view` · `page_cache` · `file` · `file_set`. In
//! addition, `state_cache` keeps results by the state of their file, and tests hold reads at a `gate`.

mod direct;
mod file;
pub mod file_set;
#[cfg(test)]
pub mod gate;
mod given_path;
mod hints;
mod identity;
pub mod locking;
mod mode;
pub mod offer;
mod opened;
mod origin;
pub mod page_cache;
mod read;
mod short_read;
mod state_cache;
mod tensor_view;
#[cfg(test)]
pub mod test_file;
mod view_counts;

pub use crate::os::fault::views::{set_hook as on_damage, untold_damage};
pub use crate::os::file::open::Identity;
pub use crate::os::memory::advise::Advice;
pub use crate::os::process::limits::nofile as descriptor_limit;
pub use file::MappedFile;
pub use given_path::GivenPath;
pub use identity::{NOT_FOUND, identity_at, is_gone};
pub use mode::{Mode, RequestedMode};
pub use opened::{Facts, Opened, View};
pub use origin::{Beside, Folder, Origin, is_directory, is_refusal};
pub use page_cache::{DropBehind, ResidentPages};
pub use read::{FileReader, can_copy_from_mappings};
pub use state_cache::{Keepable, StateCache};
pub use tensor_view::{LARGE_TENSOR_BYTES, TensorView};
