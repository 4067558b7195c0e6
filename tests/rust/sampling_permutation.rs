//! The keyed permutation: a bijection for every length, invertible, and statistically random.

use pagestream::internals::{MAX_LENGTH, ORDER_VERSION, Permutation};
use proptest::prelude::*;

fn permutation(length: u64, seed: u64, epoch: u64) -> Permutation {
    Permutation::new(length, seed, epoch).expect("a valid length")
}

fn order(length: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let permutation = permutation(length, seed, epoch);
    (0..length).map(|index| permutation.at(index)).collect()
}

/// Converts chi-squared with many degrees of freedom into a normal deviate.
fn deviation(chi_squared: f64, degrees: f64) -> f64 {
    // Wilson, Hilferty: The distribution of chi-square, 1931.
    let scale = 2.0 / (9.0 * degrees);
    ((chi_squared / degrees).cbrt() - (1.0 - scale)) / scale.sqrt()
}

fn chi_squared(counts: &[u32], expected: f64) -> f64 {
    counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum()
}

/// Yields every length of up to ten bits. Of the lengths of up to twelve bits, it yields every 31st and those near
/// powers of two, where the number of the rectangle's columns changes. As 31 is odd, each number of cells in the last
/// row occurs with many numbers of rows.
fn small_lengths() -> impl Iterator<Item = u64> {
    let is_near =
        |length: u64| [1536, 2048, 3072, 4096].into_iter().any(|border: u64| border.abs_diff(length) <= 8);
    (1..=4096).filter(move |&length| length <= 1024 || length % 31 == 0 || is_near(length))
}

#[test]
fn small_lengths_are_permuted_and_inverted() {
    are_permuted_and_inverted(small_lengths());
}

#[test]
#[ignore = "long: `cargo test -- --ignored stress`"]
fn stress_every_small_length_is_permuted_and_inverted() {
    are_permuted_and_inverted(1..=4096);
}

fn are_permuted_and_inverted(lengths: impl Iterator<Item = u64>) {
    for length in lengths {
        for seed in [0, u64::MAX] {
            let permutation = permutation(length, seed, length);
            let mut seen = vec![false; length as usize];
            for index in 0..length {
                let value = permutation.at(index);
                assert!(value < length, "{value} of {length}");
                assert!(!seen[value as usize], "{value} of {length} comes twice");
                seen[value as usize] = true;
                assert_eq!(permutation.inverse(value), index);
            }
        }
    }
}

#[test]
fn lengths_at_the_borders_of_powers_are_permuted() {
    // Grain's shuffle loses and repeats an index at 65537 and at 262145.
    for length in [65535, 65536, 65537, 98303, 98305, 262_143, 262_145, 786_433, 1_048_577] {
        let mut values = order(length, 3, 4);
        values.sort_unstable();
        assert!(values.into_iter().eq(0..length), "{length}");
    }
}

fn awkward_length() -> impl Strategy<Value = u64> {
    let near = |base: u64| (base - 1)..=(base + 1);
    prop_oneof![
        (1_u32..63).prop_flat_map(move |bits| near(1 << bits)),
        (1_u32..62).prop_flat_map(move |bits| near(3 << (bits - 1))),
        1..=MAX_LENGTH,
        (MAX_LENGTH - 2)..=MAX_LENGTH,
    ]
    .prop_map(|length| length.clamp(1, MAX_LENGTH))
}

proptest! {
    #![proptest_config(crate::cases(256))]

    #[test]
    fn any_length_round_trips(
        length in awkward_length(), seed: u64, epoch: u64, picks in prop::collection::vec(any::<u64>(), 1..64)
    ) {
        let permutation = permutation(length, seed, epoch);
        for pick in picks.into_iter().map(|pick| pick % length).chain([0, length - 1]) {
            let value = permutation.at(pick);
            prop_assert!(value < length);
            prop_assert_eq!(permutation.inverse(value), pick);
            let index = permutation.inverse(pick);
            prop_assert!(index < length);
            prop_assert_eq!(permutation.at(index), pick);
        }
    }
}

#[test]
fn lengths_that_have_no_permutation_are_refused() {
    for length in [0, MAX_LENGTH + 1, u64::MAX] {
        let error = Permutation::new(length, 0, 0).expect_err("refused").to_string();
        assert!(error.contains(&length.to_string()), "{error}");
    }
}

/// Returns the correlation of a sequence with itself shifted by `lag`.
fn autocorrelation(values: &[u64], lag: usize) -> f64 {
    let mean = (values.len() - 1) as f64 / 2.0;
    let product = |(&a, &b): (&u64, &u64)| (a as f64 - mean) * (b as f64 - mean);
    let covariance: f64 = values.iter().zip(&values[lag..]).map(product).sum();
    let variance: f64 = values.iter().map(|&value| (value as f64 - mean).powi(2)).sum();
    covariance / variance
}

#[test]
fn neighbours_are_uncorrelated() {
    const LENGTH: u64 = 1_000_000;
    for seed in 0..8 {
        let values = order(LENGTH, seed, 0);
        for lag in [1, 2, 8, 64, 1024] {
            // The standard deviation is 0.001. Five of them suffice for 40 looks.
            let correlation = autocorrelation(&values, lag);
            assert!(correlation.abs() < 0.005, "seed {seed}, lag {lag}: {correlation}");
        }
        let increasing = values.windows(2).filter(|pair| pair[0] < pair[1]).count() as f64;
        // The variance is (n + 1) / 12.
        assert!((increasing - 500_000.0).abs() < 5.0 * 289.0, "seed {seed}: {increasing} ascents");
    }
}

#[test]
fn values_are_spread_evenly_over_positions() {
    const LENGTH: u64 = 1_000_000;
    const CELLS: u64 = 50;
    for seed in 0..8 {
        let mut cells = vec![0; (CELLS * CELLS) as usize];
        let mut steps = vec![0; 1000];
        let values = order(LENGTH, seed, 1);
        for (position, &value) in (0_u64..).zip(&values) {
            cells[(position * CELLS / LENGTH * CELLS + value * CELLS / LENGTH) as usize] += 1;
        }
        // Both margins are fixed, so there are (cells - 1)^2 degrees of freedom.
        let z = deviation(chi_squared(&cells, 400.0), 49.0 * 49.0);
        assert!(z.abs() < 4.5, "seed {seed}, values over positions: {z}");
        for pair in values.windows(2) {
            let step = (pair[1] + LENGTH - pair[0]) % LENGTH;
            steps[(step * 1000 / LENGTH) as usize] += 1;
        }
        let z = deviation(chi_squared(&steps, 999.999), 999.0);
        assert!(z.abs() < 4.5, "seed {seed}, steps: {z}");
    }
}

#[test]
fn every_position_of_a_short_permutation_takes_every_value_equally_often() {
    const KEYS: u64 = 20_000;
    for length in [2, 3, 5, 7, 8, 12, 17, 31, 33, 64, 65] {
        let mut cells = vec![0_u32; (length * length) as usize];
        for seed in 0..KEYS / 4 {
            for epoch in 0..4 {
                let permutation = permutation(length, seed, epoch);
                (0..length).for_each(|index| cells[(index * length + permutation.at(index)) as usize] += 1);
            }
        }
        let expected = KEYS as f64 / length as f64;
        let degrees = ((length - 1) * (length - 1)) as f64;
        // Row and column sums are fixed, so the cells vary less than chi-squared assumes.
        let scale = (length - 1) as f64 / length as f64;
        let z = deviation(chi_squared(&cells, expected) * scale, degrees);
        assert!(z.abs() < 4.5, "length {length}: {z}");
    }
}

#[test]
fn all_permutations_of_few_elements_are_equally_frequent() {
    const KEYS: u64 = 120_000;
    for (length, permutations) in [(2_u64, 2_u32), (3, 6), (4, 24), (5, 120)] {
        let mut seen = std::collections::HashMap::new();
        for seed in 0..KEYS {
            *seen.entry(order(length, seed, 7)).or_insert(0_u32) += 1;
        }
        let counts: Vec<u32> = seen.into_values().collect();
        assert_eq!(counts.len(), permutations as usize);
        let expected = KEYS as f64 / f64::from(permutations);
        let z = deviation(chi_squared(&counts, expected), f64::from(permutations - 1));
        assert!(z.abs() < 4.5, "length {length}: {z}");
    }
}

#[test]
fn seeds_and_epochs_give_unrelated_orders() {
    const LENGTH: u64 = 10_000;
    let reference = order(LENGTH, 5, 5);
    for (seed, epoch) in [(5, 4), (5, 6), (4, 5), (6, 5), (u64::MAX, 5), (5, u64::MAX), (5, 1 << 32)] {
        let other = order(LENGTH, seed, epoch);
        // The number of fixed points of a random permutation follows a Poisson distribution of mean 1.
        let alike = reference.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(alike < 10, "seed {seed}, epoch {epoch}: {alike} alike");
        let mean = (LENGTH - 1) as f64 / 2.0;
        let covariance: f64 =
            reference.iter().zip(&other).map(|(&a, &b)| (a as f64 - mean) * (b as f64 - mean)).sum();
        let variance: f64 = reference.iter().map(|&value| (value as f64 - mean).powi(2)).sum();
        assert!((covariance / variance).abs() < 0.05, "seed {seed}, epoch {epoch}");
    }
}

/// A saved state contains this version. The orders of a version never change.
#[test]
fn version_1_is_unchanged() {
    assert_eq!(ORDER_VERSION, 1);
    assert_eq!(order(10, 0, 0), [1, 8, 6, 9, 5, 3, 2, 4, 7, 0]);
    let permutation = permutation(10_000_000_000, 42, 3);
    let values = [0, 1, 2, 9_999_999_999].map(|index| permutation.at(index));
    assert_eq!(values, [6_141_495_643, 1_093_547_962, 2_626_445_564, 6_445_539_221]);
}
