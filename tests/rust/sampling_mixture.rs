//! Mixtures: shares at every prefix, any position, and each policy for a source that runs out.

use pagestream::internals::{
    Draw, Exhausted, MAX_PERIOD, MAX_SOURCES, Mixture, Order, Permutation, Schedule, SourceSize,
};
use std::collections::HashSet;

use proptest::prelude::*;

fn mix(windows: &[u64], weights: &[u64], exhausted: Exhausted, order: Order, seed: u64) -> Schedule {
    let sources = windows.iter().map(|&windows| SourceSize { windows, starts: windows }).collect();
    let mixture = Mixture::new(weights, exhausted).expect("valid");
    Schedule::new(sources, Some(&mixture), order, seed).expect("valid")
}

fn draws(schedule: &Schedule, position: u64, count: usize) -> Vec<Draw> {
    schedule.draws(position, count).expect("valid")
}

/// Panics unless each source's draws differ from its share by less than 1 after every draw.
fn assert_fair(draws: &[Draw], weights: &[u64]) {
    let sum: u64 = weights.iter().sum();
    let mut counts = vec![0_u64; weights.len()];
    for (drawn, draw) in (1_u64..).zip(draws) {
        counts[draw.source] += 1;
        for (&count, &weight) in counts.iter().zip(weights) {
            let error = i128::from(count * sum) - i128::from(weight * drawn);
            assert!(error.unsigned_abs() < u128::from(sum), "{weights:?} after {drawn} draws: {counts:?}");
        }
    }
}

fn weight() -> impl Strategy<Value = u64> {
    prop_oneof![1_u64..8, 1_u64..100, Just(1), Just(1000)]
}

proptest! {
    #![proptest_config(crate::cases(48))]

    #[test]
    fn every_prefix_of_a_period_has_the_shares_that_were_asked_for(
        weights in prop_oneof![prop::collection::vec(weight(), 2..6), prop::collection::vec(1_u64..50, 6..=64)],
    ) {
        let schedule = mix(&vec![1 << 40; weights.len()], &weights, Exhausted::Repeat, Order::Sequential, 0);
        let period: u64 = weights.iter().sum();
        let one = draws(&schedule, 0, period as usize);
        assert_fair(&one, &weights);
        // The next period is alike.
        let next = draws(&schedule, period, period as usize);
        prop_assert!(one.iter().map(|draw| draw.source).eq(next.iter().map(|draw| draw.source)));
    }

    #[test]
    fn any_position_of_a_mixture_can_be_sought(
        sources in prop::collection::vec((1_u64..60, 1_u64..20), 1..6),
        exhausted in prop::sample::select(&[Exhausted::Repeat, Exhausted::Stop, Exhausted::Drop][..]),
        seed: u64,
        jumps in prop::collection::vec((0_u64..600, 0_usize..60), 1..8),
    ) {
        let (windows, weights): (Vec<u64>, Vec<u64>) = sources.into_iter().unzip();
        let schedule = mix(&windows, &weights, exhausted, Order::Shuffled, seed);
        let all = draws(&schedule, 0, 660);
        for (position, count) in jumps {
            let expected = &all[position as usize..][..count];
            let fresh = mix(&windows, &weights, exhausted, Order::Shuffled, seed);
            prop_assert_eq!(&draws(&schedule, position, count)[..], expected);
            prop_assert_eq!(&draws(&fresh, position, count)[..], expected);
        }
    }

    #[test]
    fn drop_reads_each_window_once_a_pass_and_keeps_the_shares_of_those_that_are_left(
        sources in prop::collection::vec((1_u64..80, weight()), 1..6), seed: u64
    ) {
        let (windows, weights): (Vec<u64>, Vec<u64>) = sources.into_iter().unzip();
        let schedule = mix(&windows, &weights, Exhausted::Drop, Order::Shuffled, seed);
        let length: u64 = windows.iter().sum();
        prop_assert_eq!(schedule.len(), Some(length));
        for pass in 0..2 {
            let drawn = draws(&schedule, pass * length, length as usize);
            prop_assert!(drawn.iter().all(|draw| draw.epoch == pass));
            let distinct: HashSet<(usize, u64)> = drawn.iter().map(|draw| (draw.source, draw.index)).collect();
            prop_assert_eq!(distinct.len() as u64, length);
            prop_assert!(distinct.iter().all(|&(source, index)| index < windows[source]));
            // Cut where a source was drawn last: between two cuts those that are left have their shares.
            let mut left = windows.clone();
            let mut start = 0;
            for (number, draw) in drawn.iter().enumerate() {
                left[draw.source] -= 1;
                if left[draw.source] == 0 {
                    let part = &drawn[start..=number];
                    let takes_part = |source: usize| left[source] > 0 || source == draw.source;
                    let shares: Vec<u64> = (0..weights.len())
                        .map(|source| if takes_part(source) { weights[source] } else { 0 })
                        .collect();
                    assert_fair(part, &shares);
                    start = number + 1;
                }
            }
        }
    }

    #[test]
    fn stop_ends_with_the_last_window_of_a_source(
        sources in prop::collection::vec((1_u64..80, weight()), 1..6), seed: u64
    ) {
        let (windows, weights): (Vec<u64>, Vec<u64>) = sources.into_iter().unzip();
        let schedule = mix(&windows, &weights, Exhausted::Stop, Order::Shuffled, seed);
        let length = schedule.len().expect("it ends");
        for pass in 0..2 {
            let drawn = draws(&schedule, pass * length, length as usize);
            let mut left = windows.clone();
            for (number, draw) in (1..).zip(&drawn) {
                prop_assert_eq!(draw.epoch, pass);
                left[draw.source] -= 1;
                prop_assert_eq!(left[draw.source] == 0, number == length);
            }
            assert_fair(&drawn, &weights);
            let distinct: HashSet<(usize, u64)> = drawn.iter().map(|draw| (draw.source, draw.index)).collect();
            prop_assert_eq!(distinct.len() as u64, length);
        }
    }

    #[test]
    fn repeat_gives_each_source_its_own_epochs(
        sources in prop::collection::vec((1_u64..40, 1_u64..20), 1..6), seed: u64
    ) {
        let (windows, weights): (Vec<u64>, Vec<u64>) = sources.into_iter().unzip();
        let schedule = mix(&windows, &weights, Exhausted::Repeat, Order::Shuffled, seed);
        prop_assert_eq!(schedule.len(), None);
        let drawn = draws(&schedule, 0, 1000);
        for (source, &windows) in windows.iter().enumerate() {
            let own: Vec<&Draw> = drawn.iter().filter(|draw| draw.source == source).collect();
            for (epoch, part) in (0..).zip(own.chunks(windows as usize)) {
                prop_assert!(part.iter().all(|draw| draw.epoch == epoch));
                let distinct: HashSet<u64> = part.iter().map(|draw| draw.index).collect();
                prop_assert_eq!(distinct.len(), part.len());
            }
        }
    }
}

/// What the sources that did not run out do: they begin again, with the next epoch's permutation.
#[test]
fn stop_restarts_every_source_in_the_next_pass() {
    let schedule = mix(&[10, 1000], &[1, 1], Exhausted::Stop, Order::Shuffled, 3);
    let length = schedule.len().expect("it ends");
    assert!((19..=20).contains(&length), "{length}");
    let second_of = |pass| {
        let drawn = draws(&schedule, pass * length, length as usize);
        drawn.into_iter().filter(|draw| draw.source == 1).map(|draw| draw.index).collect::<Vec<_>>()
    };
    assert_ne!(second_of(0), second_of(1));
    let first = draws(&schedule, length, length as usize);
    let own = first.iter().filter(|draw| draw.source == 0).map(|draw| draw.index);
    let permutation = Permutation::new(10, 3, 1).expect("valid");
    assert!(own.eq((0..10).map(|index| permutation.at(index))));
}

#[test]
fn the_largest_period_and_the_most_uneven_weights_are_fair() {
    let mut random = 1_u64;
    let mut next = |below| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for sources in [2, 3, 64] {
        let mut weights: Vec<u64> = (1..sources).map(|_| 1 + next(MAX_PERIOD / sources)).collect();
        weights.push(MAX_PERIOD - weights.iter().sum::<u64>());
        let schedule = mix(&vec![1 << 40; weights.len()], &weights, Exhausted::Repeat, Order::Sequential, 0);
        assert_fair(&draws(&schedule, 0, MAX_PERIOD as usize), &weights);
    }
    for weights in [vec![1, MAX_PERIOD - 1], vec![MAX_PERIOD - 2, 1, 1], vec![1; 64]] {
        let schedule = mix(&vec![1 << 40; weights.len()], &weights, Exhausted::Repeat, Order::Sequential, 0);
        assert_fair(&draws(&schedule, 0, weights.iter().sum::<u64>() as usize), &weights);
    }
}

#[test]
fn equal_sources_are_not_in_step() {
    let schedule = mix(&[1000, 1000], &[1, 1], Exhausted::Drop, Order::Shuffled, 1);
    let drawn = draws(&schedule, 0, 2000);
    let of = |source| drawn.iter().filter(move |draw| draw.source == source).map(|draw| draw.index);
    let alike = of(0).zip(of(1)).filter(|(a, b)| a == b).count();
    assert!(alike < 10, "{alike} of 1000 alike");
}

#[test]
fn far_positions_are_sought_without_reading_what_is_before() {
    for exhausted in [Exhausted::Repeat, Exhausted::Stop, Exhausted::Drop] {
        let schedule = mix(&[1 << 50, 1 << 40, 7], &[600, 30, 1], exhausted, Order::Shuffled, 1);
        for position in [1 << 30, 1 << 45, (1 << 63) + 12345, u64::MAX - 40] {
            let all = draws(&schedule, position, 40);
            assert_eq!(draws(&schedule, position + 11, 29), all[11..]);
        }
    }
}

#[test]
fn one_source_of_a_mixture_is_that_source_alone() {
    let alone =
        Schedule::new(vec![SourceSize { windows: 50, starts: 50 }], None, Order::Shuffled, 8).expect("valid");
    for exhausted in [Exhausted::Repeat, Exhausted::Stop, Exhausted::Drop] {
        let schedule = mix(&[50], &[9], exhausted, Order::Shuffled, 8);
        assert_eq!(draws(&schedule, 0, 200), draws(&alone, 0, 200));
    }
}

#[test]
fn weights_are_reduced_and_those_that_cannot_be_used_are_refused() {
    let new = |weights: &[u64]| Mixture::new(weights, Exhausted::Repeat);
    assert_eq!(new(&[70_000, 30_000]).expect("valid").weights, [7, 3]);
    for (weights, expected) in [
        (vec![], "0"),
        (vec![1; MAX_SOURCES + 1], "1025"),
        (vec![3, 0, 1], "source 1"),
        (vec![1, MAX_PERIOD], "65536"),
        (vec![u64::MAX, 2], "65536"),
    ] {
        let error = new(&weights).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
    for exhausted in [Exhausted::Repeat, Exhausted::Stop, Exhausted::Drop] {
        assert_eq!(Exhausted::from_word(exhausted.word()).expect("known"), exhausted);
    }
    assert!(Exhausted::from_word("end").expect_err("unknown").to_string().contains("'end'"));
    let huge = vec![SourceSize { windows: 1 << 63, starts: 1 }; 2];
    let mixture = Mixture::new(&[1, 1], Exhausted::Drop).expect("valid");
    let error = Schedule::new(huge, Some(&mixture), Order::Shuffled, 0).expect_err("refused").to_string();
    assert!(error.contains("2^64 draws"), "{error}");
}

/// A saved state names this version; the draws of a version never change.
#[test]
fn version_1_is_what_it_was() {
    let schedule = mix(&[20, 9, 4], &[5, 3, 1], Exhausted::Drop, Order::Shuffled, 11);
    let found: Vec<(usize, u64)> =
        draws(&schedule, 6, 8).iter().map(|draw| (draw.source, draw.index)).collect();
    assert_eq!(found, [(1, 2), (0, 5), (2, 0), (0, 15), (1, 3), (0, 6), (0, 10), (1, 5)]);
}
