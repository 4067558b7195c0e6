//! [`MappedFile`]: the one way to open a file.
//!
//! **What it promises.** A file that can be read can be opened: `mode.rs` walks from a shared mapping over a private
//! one to positioned reads. It is opened once, or with `PAGESTREAM_SHARE=on` taken from a process that has it open (`offer.rs`):
//! on FUSE each further `open` drops the file's page cache. Its descriptor stays open as long as the object; direct reads need a second one. It is
//! mapped once per protection. A file that is cut, rewritten or fails is an error that says so, in every way that copies;
//! a view of it shows that as damage, or to `check`. No call kills the process. A [`View`] keeps its mapping
//! alive by itself: closing or refreshing the file does not disturb it.
//!
//! **Five ways to read.**
//!
//! | call on [`Opened`] | where the bytes come from | when they are known to be the file's | cost beside the copy | for |
//! |---|---|---|---|---|
//! | `read`, `read_into` | the mapping, else pread | when it returns, as far as `verify` tells | one fstat | one range |
//! | `reader` | the mapping, else pread | after `finish`, likewise | one fstat for all ranges | many ranges, by one thread |
//! | `exact_reader` | pread, without read-ahead | after `finish`, likewise | two fadvise, one fstat for all ranges | few bytes here and there, by any threads |
//! | `read_directly` | pread past the page cache, by a second descriptor | after `verify` | none | many bytes that nobody else needs |
//! | `view`, `copy_on_write_view` | the mapping itself, not copied; nothing in `read` mode | never: `check` | none | arrays |
//!
//! `copy_into` is the step of a [`FileReader`] alone, for a caller that keeps many files at hand: it checks nothing,
//! and the caller calls `verify` afterwards. Copies out of a mapping go by a routine that survives bus errors, if
//! [`can_copy_from_mappings`] in that thread; where it stops, pread gets the bytes after all or tells the true cause.
//!
//! **Three checks.**
//!
//! | call | asks | notices |
//! |---|---|---|
//! | `Opened::verify` | the kernel; for a mapped file also the server, but not on mounts that keep no times of access; after zeros at the end of a page the server | that the file was cut or written to, perhaps some seconds later |
//! | `Opened::verify_with_server` | the server in any case, once | the same, at once |
//! | `MappedFile::check` | the server about the descriptor, the kernel about the path | that it was cut, grew, was written to, deleted or replaced, and damage to its mappings |
//!
//! Copies of tensors are handed out after `verify_with_server`: a tensor is read in chunks, and the file may change between
//! two chunks.
//!
//! Damage, a page that could not be read when an array was used ([`crate::os::fault::views`]), is also looked for
//! each time that memory is handed out. A rewrite that keeps size
//! and time of change passes all checks.
//!
//! **The files**, lowest first: `identity`, `direct` · `given_path` · `mode` · `origin`, `offer`, `view_counts` · `opened` · `hints` · `short_read` · `read`, `locking` · `tensor_view` ·
//! `page_cache` · `file` · `file_set`. Beside them `state_cache` keeps results by the state of their file. Tests hold reads at a `gate`.

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
