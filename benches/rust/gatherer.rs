//! Rows of batches from random places of a mapped, cached file. `RowCopier` is compared with plain loops over a slice,
//! also compiled for AVX2, and with the limit: two threads that write the same number of bytes and read nothing.
//!
//! `cargo bench --bench gatherer`
#![allow(unsafe_code)] // A slice over the mapping, and calls of AVX2 functions.

use pagestream::internals::{Dtype, Element, Mapping, Region, RequestedMode, RowCopier, TokenCorpus, Uninit};
use std::hint::black_box;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const FILE_BYTES: usize = 64 << 20;
const BATCH_TOKENS: usize = 64 << 10;

/// Copies one row: x from the first token of `source`, y from the second.
type Plain<From, To> = fn(&[From], &mut [To], &mut [To]);

/// Uses two loops, because compilers vectorise a single loop over both rows less well.
macro_rules! plain {
    ($from:ty => $to:ty) => {{
        fn body(source: &[$from], x: &mut [$to], y: &mut [$to]) {
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
            fn wide(source: &[$from], x: &mut [$to], y: &mut [$to]) {
                x.iter_mut().zip(source).for_each(|(x, token)| *x = *token as $to);
                y.iter_mut().zip(&source[1..]).for_each(|(y, token)| *y = *token as $to);
            }
            // SAFETY: `compare` has checked for AVX2.
            #[allow(unused_unsafe)]
            unsafe {
                wide(source, x, y);
            }
        }
        body as Plain<$from, $to>
    }};
}

/// Returns the first tokens of windows. They are the same for each contestant.
fn starts(windows: usize) -> impl FnMut() -> usize {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) as usize % windows
    }
}

fn compare<From: Copy, To: Copy + Default + PartialEq>(
    criterion: &mut Criterion,
    (dtype, element): (Dtype, Element),
    plain: Plain<From, To>,
) {
    #[cfg(target_arch = "x86_64")]
    assert!(std::arch::is_x86_feature_detected!("avx2"));
    // The tokens are small numbers, which fit every type: each uses only its lowest two bytes, or its single byte.
    let item = size_of::<From>();
    let byte =
        |place: usize| if place % item < 2 { (place.wrapping_mul(0x9E37_79B1) >> 13) as u8 } else { 0 };
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(&(0..FILE_BYTES).map(byte).collect::<Vec<_>>()).expect("written");
    let region = Region::map(file.as_file().as_fd(), std::path::Path::new(""), FILE_BYTES, Mapping::Shared)
        .expect("mapped");
    region.touch(0, FILE_BYTES).expect("readable");
    let tokens = FILE_BYTES / item;
    // SAFETY: the mapping is page-aligned and has this number of tokens, and no program changes the file.
    let slice = unsafe { std::slice::from_raw_parts(region.as_ptr().cast::<From>(), tokens) };
    let path = [file.path().to_path_buf()];
    let corpus = Arc::new(TokenCorpus::open(&path, Some(dtype), None, RequestedMode::Auto).expect("opened"));

    for length in [1024, 4096] {
        let name = format!("gatherer/{}_{}/{length}", dtype.name().to_lowercase(), element.word());
        let mut group = criterion.benchmark_group(name);
        group
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(500))
            .sample_size(30)
            .throughput(Throughput::Elements(BATCH_TOKENS as u64));
        let [mut x, mut y] = [(); 2].map(|()| vec![To::default(); BATCH_TOKENS]);
        let mut batch = |start: &mut dyn FnMut() -> usize| {
            for (x, y) in x.chunks_exact_mut(length).zip(y.chunks_exact_mut(length)) {
                plain(&slice[start()..][..=length], x, y);
            }
            black_box((x.as_ptr(), y.as_ptr()));
        };
        let mut start = starts(tokens - length);
        group.bench_function(BenchmarkId::from_parameter("plain"), |bencher| {
            bencher.iter(|| batch(&mut start));
        });
        batch(&mut starts(tokens - length));

        let row_bytes = length * size_of::<To>();
        let [mut x_bytes, mut y_bytes] = [(); 2].map(|()| vec![0_u8; BATCH_TOKENS * size_of::<To>()]);
        let mut gatherer = RowCopier::new(corpus.clone(), None, None);
        let mut batch = |start: &mut dyn FnMut() -> usize| {
            let mut next = start() as u64;
            for (x, y) in x_bytes.chunks_exact_mut(row_bytes).zip(y_bytes.chunks_exact_mut(row_bytes)) {
                // A loader also knows the next row.
                let first = std::mem::replace(&mut next, start() as u64);
                gatherer.prefetch(next);
                let window = (first, first + length as u64 + 1);
                gatherer.row(window, element, Uninit::of(x), Some(Uninit::of(y))).expect("a row");
            }
            gatherer.verify().expect("unchanged");
        };
        let mut start = starts(tokens - length);
        group.bench_function(BenchmarkId::from_parameter("gatherer"), |bencher| {
            bencher.iter(|| batch(&mut start));
        });
        batch(&mut starts(tokens - length));
        for (plain, ours) in [(&x, &x_bytes), (&y, &y_bytes)] {
            // SAFETY: integers have no padding.
            let plain = unsafe { std::slice::from_raw_parts(plain.as_ptr().cast::<u8>(), ours.len()) };
            assert!(plain == ours.as_slice(), "{dtype} to {element:?}");
        }
        group.bench_function(BenchmarkId::from_parameter("write_only_2_threads"), |bencher| {
            bencher.iter_custom(|rounds| write_only(rounds, &mut x_bytes, &mut y_bytes));
        });
        group.finish();
    }
}

/// Two threads each fill a row with one byte. Returns the time of the slower thread.
fn write_only(rounds: u64, x: &mut [u8], y: &mut [u8]) -> Duration {
    let fill = |out: &mut [u8]| {
        let start = Instant::now();
        (0..rounds).for_each(|round| black_box(&mut *out).fill(round as u8));
        start.elapsed()
    };
    std::thread::scope(|scope| {
        let threads = [x, y].map(|out| scope.spawn(move || fill(out)));
        threads.into_iter().map(|thread| thread.join().expect("finished")).max().unwrap_or_default()
    })
}

fn pairs(criterion: &mut Criterion) {
    macro_rules! pair {
        ($dtype:ident $from:ty => $($element:ident $to:ty),+) => {
            $(compare(criterion, (Dtype::$dtype, Element::$element), plain!($from => $to));)+
        };
    }
    pair!(U8 u8 => I64 i64, I32 i32);
    pair!(U16 u16 => I64 i64, I32 i32, Raw u16);
    pair!(U32 u32 => I64 i64, I32 i32, Raw u32);
    pair!(I32 i32 => I64 i64, I32 i32);
    pair!(I64 i64 => I64 i64, I32 i32);
    pair!(U64 u64 => I64 i64, I32 i32);
}

criterion_group!(benches, pairs);
criterion_main!(benches);
