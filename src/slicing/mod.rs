//! Parts of a tensor by NumPy's basic indexing: which bytes of the file they are, and reading only those.
//!
//! A [`Selection`] is what indexing gives: the first byte, a shape, and strides in bytes, which may be
//! negative. It is turned into a [`SlicePlan`], pure arithmetic that sees no file:
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
//! What the room promises: the result is what indexing means, or an error; a byte is read at most once, and
//! no byte outside the selection and its small gaps; memory beside the result is at most a piece for each
//! thread; the caller is asked every [`cancel::PERIOD`](crate::fetch::cancel::PERIOD) whether to go on.
//! Weights use it.
//!
//! **Gap rule.** A gap of less than [`GAP_BYTES`] between two wanted bytes is read, too, unless the extent
//! would grow beyond [`PIECE_BYTES`]; a larger gap never is.

mod fill;
mod outputs;
mod plan;
mod scatter;
mod selection;

pub use crate::fetch::cancel::KeepGoing;
pub use fill::fill;
pub use plan::{Block, Blocks, GAP_BYTES, PIECE_BYTES, SlicePlan};
pub use selection::Selection;
