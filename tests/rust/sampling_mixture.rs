//! Mixtures: exact shares at every prefix, any position, and each policy for an exhausted source.

use pagestream::internals::{
    Draw, Exhausted, MAX_SOURCES, MAX_WEIGHT_SUM, Mixture, MixtureProgress, Order, Permutation, Schedule,
    SourceProgress, SourceSize, Start,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;

const POLICIES: [Exhausted; 3] = [Exhausted::Repeat, Exhausted::Stop, Exhausted::Drop];

fn mixture(windows: &[u64], weights: &[u64], exhausted: Exhausted, start: Option<Start>) -> Arc<Mixture> {
    Arc::new(Mixture::new(weights, windows, exhausted, start).expect("valid"))
}

fn schedule_of(mixture: &Arc<Mixture>, order: Order, seed: u64) -> Schedule {
    let sources = mixture.windows().iter().map(|&windows| SourceSize { windows, starts: windows }).collect();
    Schedule::new(sources, Some(mixture.clone()), order, seed).expect("valid")
}

fn mix(windows: &[u64], weights: &[u64], exhausted: Exhausted, order: Order, seed: u64) -> Schedule {
    schedule_of(&mixture(windows, weights, exhausted, None), order, seed)
}

fn draws(schedule: &Schedule, position: u64, count: usize) -> Vec<Draw> {
    schedule.draws(position, count).expect("valid")
}

/// The bound of `turns.rs`, in hundredths of a draw.
fn bound(weights: &[u64]) -> u128 {
    if weights.iter().filter(|&&weight| weight > 0).count() <= 3 { 100 } else { 168 }
}

fn assert_near_shares(counts: &[u64], weights: &[u64], drawn: u64) {
    let sum: u64 = weights.iter().sum();
    for (&count, &weight) in counts.iter().zip(weights) {
        let error = i128::from(count) * i128::from(sum) - i128::from(weight) * i128::from(drawn);
        let is_near = error.unsigned_abs() * 100 <= bound(weights) * u128::from(sum);
        assert!(is_near, "{weights:?} after {drawn} draws: {counts:?}");
    }
}

/// Panics unless each source is near its share after every draw.
fn assert_fair(draws: &[Draw], weights: &[u64]) {
    let mut counts = vec![0_u64; weights.len()];
    for (drawn, draw) in (1_u64..).zip(draws) {
        counts[draw.source] += 1;
        assert_near_shares(&counts, weights, drawn);
    }
}

fn weight() -> impl Strategy<Value = u64> {
    prop_oneof![1_u64..8, 1_u64..100, Just(1), Just(1000), 1_u64..1 << 25]
}

fn policy() -> impl Strategy<Value = Exhausted> {
    prop::sample::select(&POLICIES[..])
}

/// Computes the progress at `position` by a walk through all draws, from an empty start.
fn walked(draws: &[Draw], windows: &[u64]) -> Vec<SourceProgress> {
    let mut progress: Vec<_> = windows.iter().map(|_| SourceProgress { epoch: 0, taken: 0 }).collect();
    for draw in draws {
        let source = &mut progress[draw.source];
        if draw.epoch > source.epoch {
            *source = SourceProgress { epoch: draw.epoch, taken: 0 };
        }
        source.taken += 1;
    }
    progress
}

proptest! {
    #![proptest_config(crate::cases(48))]

    #[test]
    fn every_prefix_of_a_period_has_the_shares_that_were_asked_for(
        weights in prop_oneof![
            prop::collection::vec(1_u64..8, 2..6), prop::collection::vec(1_u64..50, 6..=64)
        ],
    ) {
        let schedule = mix(&vec![1 << 40; weights.len()], &weights, Exhausted::Repeat, Order::Sequential, 0);
        let period: u64 = weights.iter().sum();
        let one = draws(&schedule, 0, period as usize);
        assert_fair(&one, &weights);
        // One period has exact shares, and the next period is identical.
        for (source, &weight) in weights.iter().enumerate() {
            prop_assert_eq!(one.iter().filter(|draw| draw.source == source).count() as u64, weight);
        }
        let next = draws(&schedule, period, period as usize);
        prop_assert!(one.iter().map(|draw| draw.source).eq(next.iter().map(|draw| draw.source)));
    }

    #[test]
    fn weights_of_32_bits_are_near_their_shares_at_every_point(
        weights in prop_oneof![
            prop::collection::vec(1_u64..1 << 30, 2..=3),
            prop::collection::vec(weight(), 2..=64),
            prop::collection::vec(1_u64..1 << 22, 400..500),
        ],
        far in 0_u64..1 << 60,
    ) {
        let windows = vec![1 << 62; weights.len()];
        let mixture = mixture(&windows, &weights, Exhausted::Repeat, None);
        assert_fair(&draws(&schedule_of(&mixture, Order::Sequential, 0), 0, 1000), &weights);
        for position in [far, far + 1, far + 2] {
            let progress = mixture.progress(position).expect("valid");
            let counts: Vec<u64> = progress.sources.iter().map(|source| source.taken).collect();
            prop_assert_eq!(counts.iter().sum::<u64>(), position);
            assert_near_shares(&counts, &weights, position);
        }
    }

    #[test]
    fn progress_is_what_a_walk_counts(
        sources in prop::collection::vec((1_u64..60, weight()), 1..6), exhausted in policy(), seed: u64,
    ) {
        let (windows, weights): (Vec<u64>, Vec<u64>) = sources.into_iter().unzip();
        let mixture = mixture(&windows, &weights, exhausted, None);
        let all = draws(&schedule_of(&mixture, Order::Shuffled, seed), 0, 400);
        for position in 0..=400 {
            let MixtureProgress { pass, sources } = mixture.progress(position).expect("valid");
            if let Some(length) = mixture.pass_length() {
                prop_assert_eq!(pass, position / length);
            }
            for ((found, walked), &windows) in
                sources.iter().zip(walked(&all[..position as usize], &windows)).zip(&windows)
            {
                // The walk cannot tell that an epoch is about to begin.
                let begins = SourceProgress { epoch: walked.epoch + 1, taken: 0 };
                let is_passed = exhausted != Exhausted::Repeat && found.epoch == pass && found.taken == 0;
                let is_over = walked.taken == windows && *found == begins;
                prop_assert!(*found == walked || is_over || is_passed, "{found:?}, not {walked:?}");
            }
        }
    }

    #[test]
    fn other_weights_go_on_with_each_source_where_it_was(
        sources in prop::collection::vec((1_u64..60, weight(), weight()), 1..6),
        policies in (policy(), policy()),
        seed: u64,
        turn in 0_u64..200,
    ) {
        let windows: Vec<u64> = sources.iter().map(|source| source.0).collect();
        let of = |weight: fn(&(u64, u64, u64)) -> u64| sources.iter().map(weight).collect::<Vec<u64>>();
        let before = mixture(&windows, &of(|source| source.1), policies.0, None);
        let progress = before.progress(turn).expect("valid");
        let numbers = (0..windows.len() as u32).collect();
        let start = Start { position: turn, progress: progress.clone(), numbers };
        let after = mixture(&windows, &of(|source| source.2), policies.1, Some(start));
        let schedule = schedule_of(&after, Order::Shuffled, seed);
        let mut all = draws(&schedule_of(&before, Order::Shuffled, seed), 0, turn as usize);
        let later = draws(&schedule, turn, 400);
        for position in [turn, turn + 1, turn + 77, turn + 399] {
            let fresh = schedule_of(&after, Order::Shuffled, seed);
            let expected = &later[(position - turn) as usize..];
            prop_assert_eq!(&draws(&fresh, position, expected.len())[..], expected);
        }
        prop_assert!(turn == 0 || schedule.draws(turn - 1, 1).is_err());
        prop_assert_eq!(after.progress(turn).expect("valid").sources.len(), windows.len());
        // No window of an epoch occurs twice, and epochs follow one another.
        all.extend(&later);
        let mut seen = HashSet::new();
        let mut last = HashMap::new();
        for draw in &all {
            prop_assert!(seen.insert((draw.source, draw.epoch, draw.index)), "{draw:?} comes again");
            let epoch = last.insert(draw.source, draw.epoch).unwrap_or(draw.epoch);
            prop_assert!(draw.epoch >= epoch);
        }
        // If the sources repeat, each epoch draws all of its windows before the next one begins.
        if policies == (Exhausted::Repeat, Exhausted::Repeat) {
            for (source, &windows) in windows.iter().enumerate() {
                let epochs: Vec<u64> =
                    all.iter().filter(|draw| draw.source == source).map(|draw| draw.epoch).collect();
                prop_assert!((0..).zip(epochs).all(|(number, epoch): (u64, u64)| epoch == number / windows));
            }
        }
        // If exhausted sources are dropped, the rest of the pass contains all remaining windows.
        if policies == (Exhausted::Drop, Exhausted::Drop) {
            let pass: u64 = windows.iter().sum();
            for (number, draw) in (0_u64..).zip(&all) {
                prop_assert_eq!(draw.epoch, number / pass);
            }
            let passes = progress.pass + 5;
            prop_assert_eq!(after.end_of_passes(passes), Some(passes * pass));
        }
        if let Some(length) = after.pass_length() {
            let ended = later.iter().position(|draw| draw.epoch > progress.sources[draw.source].epoch);
            let end = after.end_of_passes(progress.pass + 1).expect("it ends");
            if let Some(ended) = ended {
                prop_assert_eq!(end, turn + ended as u64);
            }
            prop_assert_eq!(after.end_of_passes(progress.pass), Some(turn));
            prop_assert_eq!(after.end_of_passes(progress.pass + 3), Some(end + 2 * length));
        } else {
            prop_assert_eq!(after.end_of_passes(1), None);
        }
    }

    #[test]
    fn ranks_share_a_batch_that_does_not_depend_on_their_number(
        sources in prop::collection::vec((1_u64..60, weight()), 1..6),
        exhausted in policy(),
        seed: u64,
        position in 0_u64..500,
        global_rows in 1_u64..40,
    ) {
        let (windows, weights): (Vec<u64>, Vec<u64>) = sources.into_iter().unzip();
        let schedule = mix(&windows, &weights, exhausted, Order::Shuffled, seed);
        let whole = schedule.batch(position, global_rows, 0..global_rows).expect("valid");
        let mut expected = draws(&schedule, position, global_rows as usize);
        let rotation = (0..expected.len()).find(|_| {
            let is_found = expected == whole;
            if !is_found {
                expected.rotate_left(1);
            }
            is_found
        });
        prop_assert!(rotation.is_some(), "{whole:?} is no rotation of {expected:?}");
        prop_assert!(windows.len() > 1 || rotation == Some(0));
        for ranks in [1, 2, 3, 8] {
            let rows = |rank: u64| rank * global_rows / ranks..(rank + 1) * global_rows / ranks;
            let parts = (0..ranks).flat_map(|rank| {
                let fresh = mix(&windows, &weights, exhausted, Order::Shuffled, seed);
                fresh.batch(position, global_rows, rows(rank)).expect("valid")
            });
            prop_assert_eq!(parts.collect::<Vec<_>>(), whole.clone());
        }
    }

    #[test]
    fn any_position_of_a_mixture_can_be_sought(
        sources in prop::collection::vec((1_u64..60, 1_u64..20), 1..6),
        exhausted in policy(),
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
        let mixture = mixture(&windows, &weights, Exhausted::Drop, None);
        let schedule = schedule_of(&mixture, Order::Shuffled, seed);
        let length: u64 = windows.iter().sum();
        prop_assert_eq!(mixture.pass_length(), Some(length));
        for pass in 0..2 {
            let drawn = draws(&schedule, pass * length, length as usize);
            prop_assert!(drawn.iter().all(|draw| draw.epoch == pass));
            let distinct: HashSet<(usize, u64)> = drawn.iter().map(|draw| (draw.source, draw.index)).collect();
            prop_assert_eq!(distinct.len() as u64, length);
            prop_assert!(distinct.iter().all(|&(source, index)| index < windows[source]));
            // Splits the draws at the last draw of each source. Between two splits, the remaining sources have their
            // shares.
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
        let mixture = mixture(&windows, &weights, Exhausted::Stop, None);
        let schedule = schedule_of(&mixture, Order::Shuffled, seed);
        let length = mixture.pass_length().expect("it ends");
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
        let mixture = mixture(&windows, &weights, Exhausted::Repeat, None);
        let schedule = schedule_of(&mixture, Order::Shuffled, seed);
        prop_assert_eq!(mixture.pass_length(), None);
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

/// Sources that are not exhausted begin again, with the permutation of the next epoch.
#[test]
fn stop_restarts_every_source_in_the_next_pass() {
    let mixture = mixture(&[10, 1000], &[1, 1], Exhausted::Stop, None);
    let schedule = schedule_of(&mixture, Order::Shuffled, 3);
    let length = mixture.pass_length().expect("it ends");
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
fn the_most_uneven_weights_are_fair() {
    let fibonacci: Vec<u64> =
        std::iter::successors(Some((1, 1)), |&(a, b)| Some((b, a + b))).map(|pair| pair.0).take(40).collect();
    let doubling: Vec<u64> = (0..31).map(|exponent| 1 << exponent).collect();
    for weights in [
        vec![1, MAX_WEIGHT_SUM - 1],
        vec![MAX_WEIGHT_SUM - 2, 1, 1],
        vec![1; 64],
        vec![1; MAX_SOURCES],
        fibonacci,
        doubling,
    ] {
        let windows = vec![1 << 62; weights.len()];
        let mixture = mixture(&windows, &weights, Exhausted::Repeat, None);
        assert_fair(&draws(&schedule_of(&mixture, Order::Sequential, 0), 0, 3000), &weights);
        for position in [MAX_WEIGHT_SUM, 7 * MAX_WEIGHT_SUM, (1 << 60) + 1] {
            let progress = mixture.progress(position).expect("valid");
            let counts: Vec<u64> = progress.sources.iter().map(|source| source.taken).collect();
            assert_near_shares(&counts, &weights, position);
        }
    }
}

/// With as many ranks as sources and one row per rank, the turns alone would give each rank a single source.
#[test]
fn each_rank_gets_its_share_of_each_source() {
    const BATCHES: u64 = 4000;
    for weights in [vec![1, 1], vec![1, 1, 1, 1], vec![5, 2, 1]] {
        let schedule = mix(&vec![1 << 40; weights.len()], &weights, Exhausted::Repeat, Order::Sequential, 5);
        let sum: u64 = weights.iter().sum();
        for (ranks, rows) in [(2, 1), (4, 1), (8, 1), (4, 2)] {
            let global = ranks * rows;
            for rank in 0..ranks {
                let mut counts = vec![0_u64; weights.len()];
                for batch in 0..BATCHES {
                    let own = rank * rows..(rank + 1) * rows;
                    for draw in schedule.batch(batch * global, global, own).expect("valid") {
                        counts[draw.source] += 1;
                    }
                }
                for (&count, &weight) in counts.iter().zip(&weights) {
                    let (drawn, share) = ((BATCHES * rows) as f64, weight as f64 / sum as f64);
                    let error = (count as f64 - drawn * share).abs();
                    // This bound is five standard deviations of independent draws.
                    assert!(error < 5.0 * (drawn * share * (1.0 - share)).sqrt(), "rank {rank}: {counts:?}");
                }
            }
        }
    }
}

#[test]
fn a_source_keeps_its_order_when_others_come_and_go() {
    let before = mixture(&[50, 60, 70], &[1, 1, 1], Exhausted::Repeat, None);
    let MixtureProgress { pass, sources } = before.progress(30).expect("valid");
    let start = Start {
        position: 30,
        progress: MixtureProgress { pass, sources: vec![sources[2], SourceProgress { epoch: 0, taken: 0 }] },
        numbers: vec![2, 3],
    };
    let after = schedule_of(&mixture(&[70, 20], &[3, 1], Exhausted::Repeat, Some(start)), Order::Shuffled, 4);
    let before = schedule_of(&before, Order::Shuffled, 4);
    let of = |draws: Vec<Draw>, source| {
        draws.into_iter().filter(move |draw| draw.source == source).map(|draw| draw.index)
    };
    let mut read: Vec<u64> = of(draws(&before, 0, 30), 2).collect();
    assert_eq!(read.len(), 10);
    read.extend(of(draws(&after, 30, 80), 0));
    let undisturbed: Vec<u64> = of(draws(&before, 0, 210), 2).collect();
    assert_eq!(read, undisturbed);
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
    for exhausted in POLICIES {
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
    for exhausted in POLICIES {
        let schedule = mix(&[50], &[9], exhausted, Order::Shuffled, 8);
        assert_eq!(draws(&schedule, 0, 200), draws(&alone, 0, 200));
    }
}

#[test]
fn weights_and_starts_that_cannot_be_used_are_refused() {
    let new = |weights: &[u64]| Mixture::new(weights, &vec![9; weights.len()], Exhausted::Repeat, None);
    for (weights, expected) in [
        (vec![], "0"),
        (vec![1; MAX_SOURCES + 1], "1025"),
        (vec![3, 0, 1], "source 1"),
        (vec![1, MAX_WEIGHT_SUM], "4294967296"),
        (vec![u64::MAX, 2], "4294967296"),
    ] {
        let error = new(&weights).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
    let start = Start::at_zero(2);
    let source =
        |epoch, taken| MixtureProgress { pass: 0, sources: vec![SourceProgress { epoch, taken }; 2] };
    for (start, expected) in [
        (Start::at_zero(1), "a start of 1 sources for a mixture of 2"),
        (Start { numbers: vec![7, 7], ..start.clone() }, "two sources have the number 7"),
        (Start { position: 1 << 63, ..start.clone() }, "below 2^63"),
        (
            Start { progress: MixtureProgress { pass: 1 << 63, ..start.progress.clone() }, ..start.clone() },
            "pass",
        ),
        (Start { progress: source(0, 10), ..start.clone() }, "source 0 starts at window 10"),
        (Start { progress: source(1 << 63, 9), ..start }, "of epoch 9223372036854775808"),
    ] {
        let error = Mixture::new(&[1, 2], &[9, 9], Exhausted::Drop, Some(start)).expect_err("refused");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = Mixture::new(&[1, 1], &[9, 0], Exhausted::Drop, None).expect_err("refused").to_string();
    assert!(error.contains("source 1 has no window"), "{error}");
    let sources = vec![SourceSize { windows: 8, starts: 8 }; 2];
    let other = mixture(&[9, 9], &[1, 1], Exhausted::Drop, None);
    let error = Schedule::new(sources, Some(other), Order::Shuffled, 0).expect_err("refused").to_string();
    assert!(error.contains("for a mixture of [9, 9]"), "{error}");
    for exhausted in POLICIES {
        assert_eq!(Exhausted::from_word(exhausted.word()).expect("known"), exhausted);
    }
    assert!(Exhausted::from_word("end").expect_err("unknown").to_string().contains("'end'"));
    let error = Mixture::new(&[1, 1], &[1 << 63; 2], Exhausted::Drop, None).expect_err("refused").to_string();
    assert!(error.contains("2^64 draws"), "{error}");
}

/// A saved state contains this version. The draws of a version never change.
#[test]
fn version_2_is_unchanged() {
    let schedule = mix(&[20, 9, 4], &[5, 3, 1], Exhausted::Drop, Order::Shuffled, 11);
    let pairs = |draws: Vec<Draw>| draws.iter().map(|draw| (draw.source, draw.index)).collect::<Vec<_>>();
    let drawn = draws(&schedule, 6, 8);
    assert_eq!(pairs(drawn), [(0, 1), (1, 2), (0, 5), (0, 15), (1, 3), (0, 6), (2, 2), (0, 10)]);
    let batch = schedule.batch(6, 8, 0..8).expect("valid");
    assert_eq!(pairs(batch), [(0, 15), (1, 3), (0, 6), (2, 2), (0, 10), (0, 1), (1, 2), (0, 5)]);
}
