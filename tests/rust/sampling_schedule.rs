//! The draws of a single source.

use pagestream::internals::{Draw, Draws, Key, Order, OrderKind, Permutation, Schedule, SourceSize};
use std::collections::HashSet;

use proptest::prelude::*;

const ORDERS: [Order; 4] =
    [Order::Shuffled, Order::Random, Order::Sequential, Order::Blocked { mixing_radius_windows: 32 }];

fn schedule(windows: u64, order: Order, seed: u64) -> Schedule {
    let source = SourceSize { windows, starts: windows * 3 };
    Schedule::new(vec![source], None, order, seed).expect("valid")
}

fn draws(schedule: &Schedule, position: u64, count: usize) -> Vec<Draw> {
    schedule.draws(position, count).expect("valid")
}

#[test]
fn an_epoch_has_each_window_once_and_the_next_follows() {
    for order in ORDERS.into_iter().filter(|order| *order != Order::Random) {
        let schedule = schedule(1000, order, 1);
        let all = draws(&schedule, 0, 3000);
        for (epoch, part) in (0..).zip(all.chunks(1000)) {
            assert!(part.iter().all(|draw| draw.epoch == epoch && draw.source == 0));
            let windows: HashSet<u64> = part.iter().map(|draw| draw.index).collect();
            assert_eq!(windows, (0..1000).collect());
        }
        let indices = |part: usize| all[part * 1000..][..1000].iter().map(|draw| draw.index);
        assert_eq!(indices(0).eq(indices(1)), order == Order::Sequential);
    }
}

#[test]
fn shuffled_is_the_permutation_of_seed_and_epoch() {
    let schedule = schedule(777, Order::Shuffled, 9);
    let second = Permutation::new(777, 9, 1).expect("valid");
    for (index, draw) in (0..).zip(draws(&schedule, 777, 777)) {
        assert_eq!(draw, Draw { source: 0, epoch: 1, index: second.at(index) });
    }
}

proptest! {
    #![proptest_config(crate::cases(256))]

    #[test]
    fn any_position_can_be_sought(
        order in prop::sample::select(&ORDERS[..]),
        windows in 1_u64..300,
        seed: u64,
        jumps in prop::collection::vec((0_u64..1000, 0_usize..100), 1..10),
    ) {
        let schedule = schedule(windows, order, seed);
        let all = draws(&schedule, 0, 1100);
        for (position, count) in jumps {
            let fresh = self::schedule(windows, order, seed);
            let expected = &all[position as usize..][..count];
            prop_assert_eq!(&draws(&schedule, position, count)[..], expected);
            prop_assert_eq!(&draws(&fresh, position, count)[..], expected);
        }
    }
}

#[test]
fn the_far_end_of_the_stream_can_be_read_and_no_further() {
    for order in ORDERS {
        let schedule = schedule(1000, order, 1);
        let last = draws(&schedule, u64::MAX - 5, 5);
        assert_eq!(last[4].epoch, (u64::MAX - 1) / 1000);
        let error = schedule.draws(u64::MAX - 5, 6).expect_err("refused").to_string();
        assert!(error.contains("2^64"), "{error}");
    }
    let error = schedule(1, Order::Random, 1).draws(0, usize::MAX).expect_err("refused");
    assert!(error.to_string().contains("memory"), "{error}");
}

#[test]
fn what_cannot_be_drawn_from_is_refused() {
    let new = |windows, starts, order| Schedule::new(vec![SourceSize { windows, starts }], None, order, 0);
    for (windows, starts, order, expected) in [
        (0, 9, Order::Shuffled, "no window"),
        (9, 0, Order::Random, "no window"),
        (u64::MAX, 9, Order::Shuffled, "2^63"),
        (9, u64::MAX, Order::Random, "2^63"),
        (9, 9, Order::Blocked { mixing_radius_windows: 0 }, "radius"),
    ] {
        let error = new(windows, starts, order).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(new(9, 0, Order::Shuffled).is_ok());
    assert!(new(9, u64::MAX, Order::Shuffled).is_ok());
    assert!(Schedule::new(Vec::new(), None, Order::Shuffled, 0).is_err());
    let two = vec![SourceSize { windows: 1, starts: 1 }, SourceSize { windows: 1, starts: 1 }];
    let error = Schedule::new(two, None, Order::Shuffled, 0).expect_err("refused").to_string();
    assert!(error.contains("2 sources, but weights for 1"), "{error}");
}

#[test]
fn words_of_orders_are_read_back() {
    let parsed = OrderKind::WORDS.iter().map(|word| Order::from_word(word, 32).expect("known"));
    assert_eq!(parsed.collect::<Vec<_>>(), ORDERS);
    assert!(Order::from_word("mixed", 1).expect_err("unknown").to_string().contains("'mixed'"));
}

#[test]
fn random_starts_are_uniform_and_repeat() {
    for starts in [1_u64, 3, 1000] {
        let draws = Draws::new(Key::of_seed(starts), starts);
        let mut counts = vec![0_u32; starts as usize];
        (0..100_000).for_each(|number| counts[draws.at(number) as usize] += 1);
        let expected = 100_000.0 / starts as f64;
        let chi_squared: f64 =
            counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
        let degrees = starts as f64 - 1.0;
        assert!((chi_squared - degrees).abs() <= 5.0 * (2.0 * degrees).sqrt(), "{starts}: {chi_squared}");
    }
}

/// With 3/4 of 2^64, multiplication alone would produce some values twice as often. A quarter of the words is rejected.
#[test]
fn random_starts_of_an_awkward_range_are_unbiased() {
    let below = 3 << 62;
    let draws = Draws::new(Key::of_seed(1), below);
    let mut counts = [0_i32; 3];
    for number in 0..90_000 {
        let value = draws.at(number);
        assert!(value < below);
        counts[(value % 3) as usize] += 1;
    }
    assert!(counts.iter().all(|count| (count - 30_000).abs() < 5 * 142), "{counts:?}");
}

/// A saved state contains this version. The orders of a version never change.
#[test]
fn version_1_is_unchanged() {
    let indices = |order| draws(&schedule(100, order, 7), 96, 8).iter().map(|draw| draw.index).collect();
    let found: Vec<Vec<u64>> = ORDERS.into_iter().map(indices).collect();
    let expected = [
        [77, 53, 18, 42, 58, 78, 33, 95],
        [254, 50, 274, 255, 289, 9, 278, 256],
        [96, 97, 98, 99, 0, 1, 2, 3],
        [84, 54, 85, 55, 4, 78, 33, 76],
    ];
    assert_eq!(found, expected);
}
