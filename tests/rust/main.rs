//! Integration tests of the core, with one module per room. They run without Python.

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

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
mod tokens_part;
mod weights_checkpoint;
mod weights_header;
mod weights_index;
mod widen;

/// Runs a property with this many cases. All runs use the same cases unless `PAGESTREAM_TEST_RANDOM` is set.
fn cases(count: u32) -> ProptestConfig {
    let is_random = std::env::var_os("PAGESTREAM_TEST_RANDOM").is_some();
    let rng_seed = if is_random { RngSeed::Random } else { RngSeed::Fixed(1) };
    ProptestConfig { rng_seed, ..ProptestConfig::with_cases(count) }
}
