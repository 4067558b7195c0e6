//! Nanoseconds per index: the permutation, and draws of a schedule.
//!
//! `cargo bench --bench sampling`.

use pagestream::internals::{Exhausted, Mixture, Order, OrderKind, Permutation, Schedule, SourceSize};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// The indices or draws of one iteration.
const COUNT: u64 = 1024;

/// Limits each of the many cases to about a second.
fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1)).sample_size(50);
    group.throughput(Throughput::Elements(COUNT));
    group
}

fn permute(criterion: &mut Criterion) {
    let mut group = group(criterion, "permutation");
    for length in [4096, 200_000, 1_000_000, 10_000_000_000, 1 << 63] {
        let permutation = Permutation::new(length, 1, 2).expect("a valid length");
        let step = length / COUNT;
        group.bench_function(BenchmarkId::new("at", length), |bencher| {
            bencher.iter(|| (0..COUNT).map(|index| permutation.at(black_box(index * step))).max());
        });
        // Each index depends on the previous value. This measures the latency of an index instead of the throughput.
        group.bench_function(BenchmarkId::new("at, one after another", length), |bencher| {
            bencher.iter(|| (0..COUNT).fold(0, |index, _| permutation.at(index)));
        });
        group.bench_function(BenchmarkId::new("inverse", length), |bencher| {
            bencher.iter(|| (0..COUNT).map(|index| permutation.inverse(black_box(index * step))).max());
        });
    }
}

fn draw(criterion: &mut Criterion) {
    let mut group = group(criterion, "schedule");
    let source = SourceSize { windows: 10_000_000, starts: 10_000_000_000 };
    let sources = |count| vec![source.clone(); count];
    let uneven: Vec<u64> = (1..=64).collect();
    let mixtures = [("2 sources", vec![7, 3]), ("64 sources", uneven)];
    let mut cases: Vec<(String, Schedule)> = OrderKind::WORDS
        .iter()
        .map(|word| {
            let order = Order::from_word(word, 1 << 16).expect("known");
            let schedule = Schedule::new(sources(1), None, order, 1).expect("valid");
            ((*word).to_owned(), schedule)
        })
        .collect();
    for (name, weights) in mixtures {
        let count = weights.len();
        let mixture =
            Mixture::new(&weights, &vec![source.windows; count], Exhausted::Repeat, None).expect("valid");
        let mixture = Some(Arc::new(mixture));
        let schedule = Schedule::new(sources(count), mixture, Order::Shuffled, 1).expect("valid");
        cases.push((format!("shuffled, {name}"), schedule));
    }
    for (name, schedule) in cases {
        // The pipeline draws one batch at a time.
        for batch in [32, COUNT] {
            let mut position = 0;
            group.bench_function(BenchmarkId::new(&name, batch), |bencher| {
                bencher.iter(|| {
                    for _ in 0..COUNT / batch {
                        black_box(schedule.draws(position, batch as usize).expect("valid"));
                        position += batch;
                    }
                });
            });
        }
    }
}

criterion_group!(benches, permute, draw);
criterion_main!(benches);
