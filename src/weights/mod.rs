//! safetensors files: one file of weights, or a checkpoint of many files, as tensors by name.
//!
//! ```text
//!                 a path                          a file, folder, index or list
//!                   |                                          |
//!                   |                              locate      which files, and what the index says
//!                   |                                 |        (index: JSON -> names and shards)
//!                  file  <----------------------- open         each file's header, in parallel
//!                   |                                 |
//!    header: bytes -> checked entries              catalog     which file has which name
//!                   |                                 |
//!                   |                              report      all problems in one error, oddities as warnings
//!                   |                                 |
//!               WeightFile                        Checkpoint   -> WeightFile of a name
//! ```
//!
//! **Guarantees.**
//!
//! * Opening reads headers and the index, and nothing else. Their lengths are limited before they are read (100 MB, 256
//!   MiB). An index may name at most 65,536 files. Opening stops after 100 failed files.
//! * A header is kept after its file is closed, and serves the next opening if the file has not changed since.
//! * A header is parsed from a private copy. In strict mode, it is rejected if it breaks the format's text. With
//!   upstream's rules it is judged as the `safetensors` crate judges it, file by file (a differential test checks
//!   this).
//! * Every tensor of a header lies inside its file, so offsets need no check later.
//! * Names in an index or a folder never lead outside the folder, the blobs of its Hugging Face cache, and the one
//!   folder that the caller allows in addition. Files are opened by descriptors, so renames and links cannot change
//!   that.
//! * One error reports everything that is wrong with a checkpoint. An error that is not the checkpoint's fault (no
//!   permission, no memory) is raised as it is.
//! * Several threads can use all types at once. Calls that touch a file may block, so callers detach.
//! * Checksums beside a file ([`checksums`]) are limited by the header's length before they are read. They are found as
//!   the file was: only in its folder.
//!
//! The binding calls this module, which uses `mapped_file` for files.

pub mod blob;
mod catalog;
pub mod checkpoint;
pub mod checksums;
pub mod file;
pub mod header;
pub mod index;
mod json;
mod last_wins;
pub mod locate;
mod mistaken;
pub mod next_shard;
mod open;
mod report;
pub mod strictness;
mod tally;
