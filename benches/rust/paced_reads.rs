//! The benefit of the pace of a lead: the first tensors of a file, in order, with and without it.
//!
//! ```text
//! paced_reads FILE --tensor BYTES --used TENSORS [--paced 1]
//! ```
//!
//! The file is a sequence of tensors of `BYTES` each. A stream reads ahead of a consumer that takes the first tensors.
//! It reads as far ahead as a lead does: a lead's initial length, and twice the used bytes. Prints a line of JSON.

use pagestream::internals::{
    FIRST_BYTES, Inspect, LEAD_CREDIT, MappedFile, Next, Pace, RequestedMode, Stream, StreamOptions, Want,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(60);
/// The longest lead.
const MOST_BYTES: u64 = 128 << 20;

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("which file?")?;
    let (mut tensor_bytes, mut used, mut is_paced) = (4 << 20, 8, true);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        match name.as_str() {
            "--tensor" => tensor_bytes = value.parse()?,
            "--used" => used = value.parse()?,
            "--paced" => is_paced = value == "1",
            _ => return Err(format!("{name}?").into()),
        }
    }
    let opened = MappedFile::open(Path::new(&path), RequestedMode::Auto)?.opened()?;
    let count = opened.size() / tensor_bytes;
    let want = |number| Want { file: 0, offset: number * tensor_bytes, len: tensor_bytes, selection: None };
    let wants: Vec<_> = (0..count).map(want).collect();
    let sums: Arc<Vec<AtomicU64>> = Arc::new(wants.iter().map(|_| AtomicU64::new(0)).collect());
    let summed = sums.clone();
    let inspect: Box<Inspect> = Box::new(move |want, bytes| {
        summed[want].store(bytes.iter().map(|&byte| u64::from(byte)).sum(), Ordering::Relaxed);
        Ok(())
    });
    let pace = is_paced.then(|| Arc::new(Pace::default()));
    let options = StreamOptions { memory_bytes: FIRST_BYTES, ..StreamOptions::default() };
    let begin = Instant::now();
    let stream = Stream::start(&wants, Box::new(move |_| Ok(opened.clone())), Some(inspect), options, pace)?;
    for want in 0..used {
        if !stream.reserve(want, 1) {
            return Err(format!("tensor {want} is not near").into());
        }
        stream.double(MOST_BYTES.min(FIRST_BYTES + LEAD_CREDIT * (want as u64 + 1) * tensor_bytes));
        let Next::Ready(_) = stream.take(want, PATIENCE)? else {
            return Err(format!("tensor {want} does not come").into());
        };
    }
    let seconds = begin.elapsed().as_secs_f64();
    let checksum: u64 = sums[..used].iter().map(|sum| sum.load(Ordering::Relaxed)).sum();
    println!("{{\"seconds\": {seconds}, \"checksum\": {checksum}}}");
    Ok(())
}
