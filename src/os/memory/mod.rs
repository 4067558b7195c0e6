//! Memory: mappings of files, anonymous blocks, and what the kernel is told and asked about their pages.

pub mod advise;
pub mod anonymous;
pub mod map;
mod page;
pub mod parts;
pub mod residency;
mod uninit;
pub mod unmap;

pub use page::{page_bytes, whole_pages};
pub use uninit::{Uninit, UninitArray};
