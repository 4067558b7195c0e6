//! One run of the loader, with one of its adaptive mechanisms switched off. `compare/ablation.py` alternates such runs.
//!
//! ```text
//! ablation FILE --case warm|cold|first|steps [--without trust] [--batches 1000] [--seed 1] [--length 1024]
//!          [--rows 64] [--mode auto] [--step-microseconds 0]
//! ```
//!
//! * `warm`: batches of a cached file. Prints the seconds per batch in the fastest tenth of 50 parts of the run. In the
//!   slower parts, the machine did other work.
//! * `cold`: batches of an evicted file. Prints the seconds per batch.
//! * `first`: from the start of the pipeline to the first batch. Prints the seconds.
//! * `steps`: like `cold`, but the consumer computes for `--step-microseconds` between two batches. Prints the 99th
//!   percentile of `next`.
//!
//! Prints one line of JSON: `{"seconds": …, "major_faults": …}`.

use pagestream::internals::{
    Documents, Element, Feed, MappedFile, Next, Options, Order, Pipeline, RequestedMode, Share, StreamExtent,
    Target, TokenCorpus, TokenSource, Windows, Without, page_cache,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The loader starts in these steps, so they are not counted.
const STARTING_STEPS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(60);

fn without(name: &str) -> Outcome<Without> {
    let mut without = Without::default();
    match name {
        "nothing" => {}
        "helping" => without.helping = true,
        "extra_gatherers" => without.extra_gatherers = true,
        "adapting" => without.adapting = true,
        "trust" => without.trust = true,
        "prefetch" => without.prefetch = true,
        "small_chunks" => without.small_chunks = true,
        _ => return Err(format!("{name}?").into()),
    }
    Ok(without)
}

/// Does the work of one thread, like a training step.
fn compute(until: Instant) {
    let mut values = [1.0_f64; 256];
    while Instant::now() < until {
        for value in &mut values {
            *value = value.sqrt() + 1.0;
        }
        std::hint::black_box(&mut values);
    }
}

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("which file?")?;
    let (mut case, mut mechanism, mut mode) = (String::new(), "nothing".to_owned(), RequestedMode::Auto);
    let (mut batches, mut seed, mut length, mut rows, mut step) = (1000, 1, 1024, 64, 0);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        match name.as_str() {
            "--case" => case = value,
            "--without" => mechanism = value,
            "--batches" => batches = value.parse()?,
            "--seed" => seed = value.parse()?,
            "--length" => length = value.parse()?,
            "--rows" => rows = value.parse()?,
            "--mode" => mode = RequestedMode::from_word(&value)?,
            "--step-microseconds" => step = value.parse()?,
            _ => return Err(format!("{name}?").into()),
        }
    }
    if case != "warm" {
        page_cache::evict(&*MappedFile::open(Path::new(&path), RequestedMode::Auto)?.guarded()?)?;
    }
    let corpus = TokenCorpus::open(&[path.into()], None, None, mode)?;
    let windows = Windows::new(corpus.len(), length, 1, Target::Shift)?;
    let source = TokenSource { corpus: Arc::new(corpus), windows };
    let share = Share { rank: 0, world_size: 1, batch_size: rows };
    let extent = StreamExtent { end: None, drop_last: true };
    let feed = Feed::new(vec![source], None, Order::Random, seed, share, extent)?;
    let options = Options {
        element: Element::I64,
        documents: Documents::Ignore,
        vocabulary: None,
        threads: None,
        lookahead: None,
        memory_bytes: None,
        drop_behind: None,
        spare_buffers: 8,
        without: without(&mechanism)?,
    };
    let begun = Instant::now();
    let pipeline = Pipeline::start(feed, options, 0)?;
    let next = || match pipeline.next(PATIENCE)? {
        Next::Ready(batch) => {
            drop(std::hint::black_box(batch));
            Ok(())
        }
        Next::End | Next::NotYet => Outcome::Err("no batch".into()),
    };
    let mut waits = Vec::with_capacity(batches);
    next()?;
    let first = begun.elapsed();
    let begun = Instant::now();
    for _ in 1..batches {
        let before = Instant::now();
        next()?;
        waits.push(before.elapsed());
        compute(Instant::now() + Duration::from_micros(step));
    }
    let elapsed = begun.elapsed();
    let seconds = match case.as_str() {
        "first" => first,
        "warm" => {
            let part = (waits.len() / 50).max(1);
            let mut parts: Vec<Duration> = waits
                .chunks_exact(part)
                .map(|part| part.iter().sum::<Duration>() / part.len() as u32)
                .collect();
            parts.sort_unstable();
            parts[parts.len() / 10]
        }
        "cold" => elapsed / (batches as u32 - 1).max(1),
        "steps" => {
            let mut waits = waits.split_off(STARTING_STEPS);
            waits.sort_unstable();
            waits[waits.len() * 99 / 100]
        }
        _ => return Err(format!("--case {case}?").into()),
    };
    let metrics = pipeline.metrics();
    let faults = metrics.iter().find(|(name, _)| *name == "major_faults").map_or(0, |(_, count)| *count);
    println!("{{\"seconds\": {:.9}, \"major_faults\": {faults}}}", seconds.as_secs_f64());
    Ok(())
}
