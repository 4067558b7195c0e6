//! `pagestream`: token files and safetensors weights, mapped.
//!
//! `ARCHITECTURE.md` describes the design. Floors, lowest first; a room uses only rooms below it: [`allocate`],
//! [`error`], [`words`], [`dtype`], `file_kinds`, `mix`, [`natural`] · [`os`] · [`mapped_file`] · [`fetch`] ·
//! [`tokens`], [`sampling`], [`widen`], [`slicing`], [`weights`] · [`batching`], [`streaming`], [`hashing`] ·
//! [`leading`], [`warming`] · `python`.

// Without the binding, much of the code has no caller. With it, the compiler finds unused code.
#![cfg_attr(not(feature = "python"), allow(dead_code, unused_imports))]

mod allocate;
mod batching;
mod dtype;
mod error;
mod fetch;
mod file_kinds;
mod hashing;
mod leading;
mod mapped_file;
mod mix;
mod natural;
mod os;
#[cfg(feature = "python")]
mod python;
mod sampling;
mod slicing;
mod streaming;
mod tokens;
mod warming;
mod weights;
mod widen;
mod words;

/// Internals for the integration tests and the benchmarks. They are no interface and change without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::batching::assemble::assemble;
    pub use crate::batching::options::{Documents, Options, Without};
    pub use crate::batching::pipeline::Pipeline;
    pub use crate::batching::plan::{BatchRow, Feed, Share, StreamExtent, TokenSource};
    pub use crate::batching::row::RowCopier;
    pub use crate::dtype::Dtype;
    pub use crate::error::{Error, ReadCause, Result};
    pub use crate::fetch::budget::Budget;
    pub use crate::fetch::next::Next;
    pub use crate::fetch::ranges::{ByteRange, FileId, Merge, MergeRule};
    pub use crate::leading::lead_cursor::CREDIT as LEAD_CREDIT;
    pub use crate::mapped_file::{MappedFile, Mode, RequestedMode, page_cache};
    pub use crate::natural::compare;
    pub use crate::os::errno::{Code, describe};
    pub use crate::os::fault::{copy, install_and_check};
    pub use crate::os::memory::advise::{Advice, advise_file, advise_map};
    pub use crate::os::memory::map::{Mapping, Region};
    pub use crate::os::memory::{Uninit, page_bytes};
    pub use crate::sampling::ORDER_VERSION;
    pub use crate::sampling::blocked::{Blocked, OPEN_EXTENTS};
    pub use crate::sampling::key::{Draws, Key};
    pub use crate::sampling::mixture::{
        Exhausted, MAX_SOURCES, MAX_WEIGHT_SUM, MIXTURE_VERSION, Mixture, MixtureProgress, SourceProgress,
        Start,
    };
    pub use crate::sampling::order::{EpochOrder, Order, OrderKind};
    pub use crate::sampling::permutation::{MAX_LENGTH, Permutation};
    pub use crate::sampling::schedule::{Draw, Schedule, SourceSize};
    pub use crate::slicing::{
        GAP_BYTES, MAX_READERS, PIECE_BYTES, Selection, SlicePlan, fill, fill_run, plan_for,
    };
    pub use crate::streaming::engine::{Inspect, Stream};
    pub use crate::streaming::options::StreamOptions;
    pub use crate::streaming::pace::Pace;
    pub use crate::streaming::plan::{FIRST_BYTES, Want};
    pub use crate::tokens::corpus::{Piece, TokenCorpus};
    pub use crate::tokens::format::layout::{Format, TOKEN_DTYPES};
    pub use crate::tokens::windows::{Target, Windows};
    pub use crate::weights::checkpoint::{Assembly, Checkpoint};
    pub use crate::weights::header::{Header, HeaderError, HeaderErrorKind, MAX_HEADER_BYTES, header_bytes};
    pub use crate::weights::index::{Index, MAX_SHARDS};
    pub use crate::weights::locate::CheckpointPath;
    pub use crate::weights::strictness::Strictness;
    pub use crate::widen::{Beyond, DoesNotFit, Element, first_beyond, first_equal, widen, widen_window};
}
