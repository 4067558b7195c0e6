//! Reads parts of a tensor, selected by NumPy's basic indexing. It reads only the necessary bytes of the file.
//!
//! A [`Selection`] is the result of indexing: the first byte, a shape, and strides in bytes, which may be
//! negative. It becomes a [`SlicePlan`] by pure arithmetic, without a file:
//!
//! ```text
//! drop axes of length 1; merge neighbours that are evenly spaced as one, with the element's bytes as the
//! innermost axis                                                          -> a few axes, outermost first
//! find the innermost axes whose gaps are all below GAP_BYTES              -> a block: read in one go
//! cut blocks that are longer than PIECE_BYTES, along the outermost axis that gives small enough pieces
//! walk the outer axes in order of the file, lazily; join blocks with gaps below GAP_BYTES -> extents
//! ```
//!
//! [`fill()`] reads the extents: directly into the result if an extent is one run of it, otherwise into a scratch
//! block, from which `scatter.rs` copies the elements to their places.
//!
//! ```text
//!   SlicePlan ─┬─ Blocks ──── merge ──> ahead.ask          the lead: what is not cached
//!              └─ Outputs ─── merge ──> crew: read ──> scatter ──> result
//! ```
//!
//! **Guarantees.** The result equals the result of NumPy's indexing, or is an error. Each byte is read at most once,
//! except for 128 bytes that may be read for timing. No byte is read outside the selection and its small gaps. Memory
//! beyond the result is at most one piece per thread. The caller is asked every
//! [`crew::PERIOD`](crate::fetch::crew::PERIOD) whether to continue.
//!
//! **Caller:** the binding.
//!
//! **Gap rule.** A gap of less than [`GAP_BYTES`] between two wanted bytes is also read, unless the extent would grow
//! beyond [`PIECE_BYTES`]. A larger gap is read only if a request takes so long that reading the gap is cheaper: 16 kB
//! at 2 ms, and never more than 64 KiB including the run before it ([`plan_for`]).
//!
//! **Piece rule.** If reads bypass the page cache, no bytes are requested ahead of them. Then the pieces are short
//! enough to give one to each thread, but at least 128 KiB long.

mod fill;
mod outputs;
mod plan;
mod rules;
mod run;
mod scatter;
mod selection;
mod sequence;

pub use fill::{MAX_READERS, fill};
pub use plan::{GAP_BYTES, PIECE_BYTES, SlicePlan};
pub use rules::plan_for;
pub use run::{fill_run, is_cached_run};
pub use selection::Selection;
pub use sequence::Sequence;
