//! Memory: mappings of files, anonymous blocks, and what the kernel is told and asked about their pages.
//!
//! **What it promises.** A [`map::Region`] is guarded from the moment that it is mapped until it is unmapped
//! ([`crate::os::fault::views`]); large ones are unmapped in a thread of their own. Code that fills memory gets an [`Uninit`], through
//! which it can neither read it nor leave it uninitialised. Advice never changes what memory holds.

pub mod advise;
pub mod anonymous;
pub mod arena;
pub mod map;
mod page;
pub mod page_table;
pub mod parts;
pub mod residency;
mod uninit;
pub mod unmap;
mod zeroed;

pub use page::page_bytes;
pub use uninit::{Uninit, UninitArray};
pub use zeroed::zeroed;
