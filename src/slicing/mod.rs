//! Reads parts of a tensor, selected by NumPy's basic indexing, and only the bytes of the file that they need.
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
//! [`fill()`] reads the extents: straight into the result where an extent is one run of it, else into a
//! scratch block, from which `scatter.rs` copies the elements to their places.
//!
//! ```text
//!   SlicePlan ─┬─ Blocks ──── merge ──> ahead.ask          the lead: what is not cached
//!              └─ Outputs ─── merge ──> crew: read ──> scatter ──> result
//! ```
//!
//! **What it promises.** The result is the one that NumPy's indexing would give, or an error. A byte is read at
//! most once, but for 128 bytes that may be read to be timed, and no byte outside the selection and its small gaps. Memory
//! beyond the result is at most one piece for each thread. The caller is asked every [`crew::PERIOD`](crate::fetch::crew::PERIOD) whether to
//! continue.
//!
//! **Caller:** the binding.
//!
//! **Gap rule.** A gap of less than [`GAP_BYTES`] between two wanted bytes is also read, unless the extent would
//! grow beyond [`PIECE_BYTES`]. A larger gap is read only where a request takes so long that the gap is
//! cheaper: 16 kB at 2 ms, and never more than 64 KiB with the run before it ([`plan_for`]).
//!
//! **Piece rule.** Where reads bypass the page cache, nothing is asked for ahead of them: there pieces are as short as it
//! takes to give each thread one, down to 128 KiB.

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
