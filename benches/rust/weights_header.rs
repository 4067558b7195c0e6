//! Parsing safetensors headers, compared with the `safetensors` crate in the same run.
//!
//! `cargo bench --bench weights_header`. Prints the memory of a header of a million entries first.

use pagestream::internals::{Header, Strictness};
use std::fmt::Write;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use safetensors::SafeTensors;

/// The order of names in the header.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Sorted,
    Scattered,
}

/// Returns a file of small matrices, with names like those of language models.
fn file(tensors: u64, order: Order) -> Vec<u8> {
    let mut json = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    for position in 0..tensors {
        // Multiplication by a large prime visits each remainder once.
        let tensor = if order == Order::Scattered { position * 1_000_003 % tensors } else { position };
        let (layer, part) = (tensor / 10, tensor % 10);
        let (begin, end) = (position * 32, position * 32 + 32);
        write!(
            json,
            r#","model.layers.{layer:05}.mlp.{part}.weight":{{"dtype":"BF16","shape":[4,4],"data_offsets":[{begin},{end}]}}"#
        )
        .expect("a String takes all");
    }
    json.push('}');
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend(json.as_bytes());
    file.resize(file.len() + tensors as usize * 32, 0);
    file
}

fn json(file: &[u8]) -> &[u8] {
    let length = u64::from_le_bytes(*file.first_chunk().expect("8 bytes"));
    &file[8..8 + length as usize]
}

fn parse(json: &[u8], file_size: usize) -> Header {
    Header::parse(json, file_size as u64, Strictness::Strict).expect("valid")
}

/// Returns the peak resident memory of the process since the last reset.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Returns how far resident memory rises while a value is made. Linux only.
fn peak_growth<T>(make: impl FnOnce() -> T) -> Option<u64> {
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    let before = peak_bytes()?;
    black_box(make());
    peak_bytes()?.checked_sub(before)
}

fn print_memory() {
    const TENSORS: u64 = 900_000;
    let file = file(TENSORS, Order::Scattered);
    let json = json(&file);
    let ours = peak_growth(|| parse(json, file.len()));
    let theirs = peak_growth(|| SafeTensors::read_metadata(&file).expect("valid"));
    for (name, growth) in [("pagestream", ours), ("safetensors", theirs)] {
        let Some(growth) = growth else { continue };
        let ratio = growth as f64 / json.len() as f64;
        println!("{name}: {TENSORS} tensors take {ratio:.2} times the header's {} bytes at peak", json.len());
    }
}

fn parse_headers(criterion: &mut Criterion) {
    print_memory();
    for (order, name) in [(Order::Sorted, "sorted"), (Order::Scattered, "scattered")] {
        let mut group = criterion.benchmark_group(format!("parse a header/{name}"));
        group.sample_size(20);
        for tensors in [300, 30_000] {
            let file = file(tensors, order);
            let json = json(&file);
            group.throughput(Throughput::Bytes(json.len() as u64));
            group.bench_with_input(BenchmarkId::new("pagestream", tensors), &file, |bencher, file| {
                bencher.iter(|| parse(black_box(json), file.len()));
            });
            group.bench_with_input(BenchmarkId::new("safetensors", tensors), &file, |bencher, file| {
                bencher.iter(|| SafeTensors::read_metadata(black_box(file)).expect("valid"));
            });
        }
    }
}

criterion_group!(benches, parse_headers);
criterion_main!(benches);
