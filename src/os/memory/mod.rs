//! Memory: mappings of files, anonymous blocks, and the kernel's information and advice about their pages.
//!
//! **Guarantees.** A [`map::Region`] is guarded for as long as it is mapped ([`crate::os::fault::views`]). A separate
//! thread unmaps large regions. Code that fills memory gets an [`Uninit`], which lets it neither read the memory nor
//! leave it uninitialised. Advice never changes the contents of memory.

pub mod advise;
pub mod anonymous;
pub mod arena;
pub mod map;
mod page;
pub mod page_table;
pub mod parts;
mod placed;
pub mod residency;
mod uninit;
pub mod unmap;
mod zeroed;

pub use page::page_bytes;
pub use placed::Placed;
pub use uninit::{Uninit, UninitArray};
pub use zeroed::zeroed;
