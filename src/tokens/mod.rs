//! Token files: their formats, many of them as one axis of tokens, and windows on it.

pub mod corpus;
pub mod documents;
mod fingerprint;
pub mod format;
pub mod windows;
