//! Integration tests of the core, one module per room. They run without Python.

mod mapped_file;
mod weights_header;
