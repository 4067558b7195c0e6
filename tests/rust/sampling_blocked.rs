//! The blocked order: a bijection for every length, with groups as documented.

use pagestream::internals::{Blocked, EpochOrder, OPEN_EXTENTS, Order, Schedule, SourceSize};
use std::collections::HashSet;

use proptest::prelude::*;

fn blocked(windows: u64, mixing_radius_windows: u64, seed: u64, epoch: u64) -> Blocked {
    let source = SourceSize { windows, starts: windows };
    let order = Order::Blocked { mixing_radius_windows };
    let schedule = Schedule::new(vec![source], None, order, seed).expect("valid");
    let EpochOrder::Blocked(blocked) = schedule.epoch_order(0, epoch) else { panic!("another order") };
    *blocked
}

#[test]
fn short_epochs_have_each_window_once() {
    for radius in [1, 16, 17, 64, 100, 1000, 5000] {
        // With these small radii, each number of windows in the last group, and in its last extent, occurs many times.
        let every_up_to = if radius == 64 || radius == 100 { 700 } else { 0 };
        have_each_window_once(radius, (1..=every_up_to).chain((every_up_to + 1..=4096).step_by(43)));
    }
}

#[test]
#[ignore = "long: `cargo test -- --ignored stress`"]
fn stress_every_short_epoch_has_each_window_once() {
    for radius in [1, 16, 17, 64, 100, 1000, 5000] {
        have_each_window_once(radius, 1..=4096);
    }
}

fn have_each_window_once(radius: u64, lengths: impl Iterator<Item = u64>) {
    for windows in lengths {
        let mut blocked = blocked(windows, radius, 1, windows);
        let mut seen = vec![false; windows as usize];
        for index in 0..windows {
            let window = blocked.at(index);
            assert!(window < windows, "{window} of {windows}, radius {radius}");
            assert!(!seen[window as usize], "{window} of {windows} comes twice, radius {radius}");
            seen[window as usize] = true;
        }
    }
}

#[test]
fn groups_follow_each_other_and_consist_of_their_extents() {
    for (windows, radius) in [(1, 1), (100, 64), (4001, 64), (4096, 256), (70_000, 1000), (999, 5000)] {
        for seed in 0..8 {
            let mut blocked = blocked(windows, radius, seed, 0);
            let (mut index, mut number) = (0, 0);
            while index < windows {
                let (group, range) = blocked.group_of(index);
                assert_eq!((group, range.start), (number, index), "{windows} windows, radius {radius}");
                assert_eq!(blocked.group_of(range.end - 1), (group, range.clone()));
                let extents: Vec<_> = blocked.group_extents(group).collect();
                assert!(extents.len() as u64 <= OPEN_EXTENTS);
                let touched: HashSet<u64> = extents.into_iter().flatten().collect();
                let came: HashSet<u64> = range.clone().map(|index| blocked.at(index)).collect();
                assert_eq!(came, touched);
                (index, number) = (range.end, number + 1);
            }
            assert_eq!(index, windows);
            assert_eq!(blocked.group_extents(number).count(), 0);
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(256))]

    #[test]
    fn long_epochs_go_where_their_groups_say(
        windows in prop_oneof![1..1_u64 << 20, 1..1_u64 << 40, (1_u64 << 63) - 4096..=1_u64 << 63],
        radius in prop_oneof![1_u64..100_000, Just(1 << 40), Just(u64::MAX)],
        seed: u64,
        pick: u64,
    ) {
        let mut blocked = blocked(windows, radius, seed, 9);
        for index in [pick % windows, 0, windows - 1] {
            let (group, range) = blocked.group_of(index);
            prop_assert!(range.contains(&index));
            prop_assert!(range.end <= windows);
            let window = blocked.at(index);
            let extents: Vec<_> = blocked.group_extents(group).collect();
            prop_assert!(extents.iter().any(|extent| extent.contains(&window)));
            prop_assert_eq!(
                extents.iter().map(|extent| extent.end - extent.start).sum::<u64>(),
                range.end - range.start
            );
        }
        // Neighbouring indices of a group give different windows.
        let first = pick % windows;
        let some: Vec<u64> = (first..windows.min(first + 500)).map(|index| blocked.at(index)).collect();
        prop_assert_eq!(some.iter().collect::<HashSet<_>>().len(), some.len());
    }
}

/// Checks how far windows of one extent move apart. The documented mixing radius is the size of a group. Windows are
/// spread evenly over the group, so two of them are a third of it apart on average.
#[test]
fn an_extent_is_spread_over_its_whole_group() {
    const RADIUS: u64 = 4096;
    const WINDOWS: u64 = 40 * RADIUS;
    let mut blocked = blocked(WINDOWS, RADIUS, 2, 0);
    let mut position = vec![0; WINDOWS as usize];
    (0..WINDOWS).for_each(|index| position[blocked.at(index) as usize] = index);
    let mut distances: Vec<u64> = position
        .chunks((RADIUS / OPEN_EXTENTS) as usize)
        .flat_map(|extent| extent.windows(2).map(|pair| pair[0].abs_diff(pair[1])))
        .collect();
    distances.sort_unstable();
    assert!(*distances.last().expect("many") < RADIUS);
    let mean = distances.iter().sum::<u64>() as f64 / distances.len() as f64 / RADIUS as f64;
    let median = distances[distances.len() / 2] as f64 / RADIUS as f64;
    assert!((mean - 1.0 / 3.0).abs() < 0.01, "mean {mean}");
    // The median distance between two random points of the unit interval is 1 - sqrt(1/2).
    assert!((median - 0.2929).abs() < 0.01, "median {median}");
}
