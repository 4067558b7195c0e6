//! Integration tests of the core, one module per room. They run without Python.

mod batching;
mod gather;
mod mapped_file;
mod tokens_corpus;
mod weights_header;
