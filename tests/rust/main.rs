//! Integration tests of the core, one module per room. They run without Python.

mod weights_header;
