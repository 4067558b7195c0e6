//! The header of a safetensors file: parsed from bytes, and checked against the file's size.
//!
//! Format: <https://github.com/huggingface/safetensors#format>. A file is the header's length N (8 bytes, little
//! endian), N bytes of JSON, and the tensors' data.
//!
//! ```text
//! first bytes --prefix--> N --json--> table --validate--> Header: by name (names), by place
//!                  \          \                  \
//!                   +----------+-------------------+---> HeaderError: which rule, at which byte
//! ```
//!
//! The module is pure: it sees bytes and never a file. N bounds the work and the memory. It is at most
//! [`MAX_HEADER_BYTES`] and never more than the file holds.

mod contents;
mod error;
mod json;
mod names;
mod prefix;
mod table;
mod validate;

pub use contents::{Header, TensorEntry};
pub(super) use error::quoted;
pub use error::{HeaderError, HeaderErrorKind};
pub use prefix::{LENGTH_BYTES, MAX_HEADER_BYTES, header_bytes};
