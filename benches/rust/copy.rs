//! The copy that survives bus errors, compared with `memcpy`, on a mapped file: hot (one place), and at random places
//! of 256 MiB. It must cost no more than `memcpy`.
#![allow(unsafe_code)] // The measured functions are unsafe.

use pagestream::internals::{Mapping, Region, copy, install_and_check};
use std::hint::black_box;
use std::io::Write;
use std::os::fd::AsFd;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const FILE_BYTES: usize = 256 << 20;

fn copies(criterion: &mut Criterion) {
    assert!(install_and_check());
    let mut file = tempfile::tempfile().expect("a temporary file");
    for block in 0..FILE_BYTES as u64 / 4096 {
        file.write_all(&[block as u8; 4096]).expect("written");
    }
    let region =
        Region::map(file.as_fd(), std::path::Path::new(""), FILE_BYTES, Mapping::Shared).expect("mapped");
    region.touch(0, FILE_BYTES).expect("readable");
    for (places, spread) in [("hot", 4096), ("random", FILE_BYTES)] {
        let mut group = criterion.benchmark_group(format!("copy/{places}"));
        group
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_millis(1500))
            .sample_size(30);
        for len in [64_usize, 512, 2050, 8194, 32 << 10, 1 << 20] {
            let mut out = vec![0_u8; len];
            let mut state = 1_u64;
            let mut source = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let offset = ((state >> 20) as usize % (spread.max(len + 1) - len)) & !1;
                region.as_ptr().wrapping_add(offset)
            };
            group.throughput(Throughput::Bytes(len as u64));
            group.bench_function(BenchmarkId::new("memcpy", len), |bencher| {
                bencher.iter(|| {
                    // SAFETY: `source` stays inside the mapping, no program changes the file, and `out` has length
                    // `len`.
                    unsafe { libc::memcpy(black_box(out.as_mut_ptr()).cast(), source().cast(), len) }
                });
            });
            group.bench_function(BenchmarkId::new("fallible", len), |bencher| {
                bencher.iter(|| {
                    // SAFETY: as above.
                    let left = unsafe { copy(black_box(out.as_mut_ptr()), source(), len) };
                    assert_eq!(left, 0);
                });
            });
            assert_eq!(out[0], out[len.min(2) - 1]);
        }
        group.finish();
    }
    // The additional cost for a caller, once per read or batch.
    criterion.bench_function("ready", |bencher| bencher.iter(install_and_check));
}

criterion_group!(benches, copies);
criterion_main!(benches);
