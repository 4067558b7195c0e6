//! Integration tests of the core, one module per room. They run without Python.

mod batching_plan;
mod batching_row;
mod fetch;
mod mapped_file;
mod sampling_blocked;
mod sampling_mixture;
mod sampling_permutation;
mod sampling_schedule;
mod slicing;
mod tokens_corpus;
mod tokens_documents;
mod weights_checkpoint;
mod weights_header;
mod weights_index;
mod widen;
