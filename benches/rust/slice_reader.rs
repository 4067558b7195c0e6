//! The rule for gaps, applied to evenly spaced runs of a file: time, reads, and bytes from the disk.
//!
//! ```text
//! slice_reader FILE --run BYTES --step BYTES [--mode shared] [--gap 4096|measured] [--evict 1] [--rounds 1]
//! ```
//!
//! Reads `run` bytes out of every `step` bytes, like a slice of a tensor that fills the file. Gaps below `--gap` bytes
//! are read along. With `measured`, the cost of a request decides. `--evict 1` drops the file from the page cache
//! before each round, and fails if more than one page in a hundred stays. Prints a line of JSON with the best round.

use pagestream::internals::{
    GAP_BYTES, MAX_READERS, MappedFile, RequestedMode, Selection, SlicePlan, Uninit, fill, page_cache,
    plan_for,
};
use std::path::Path;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Returns the bytes that this process has read from disks so far.
fn device_bytes() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    Ok(line.ok_or("no read_bytes")?.trim().parse()?)
}

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("which file?")?;
    let (mut run, mut step, mut gap) = (0, 0, Some(GAP_BYTES));
    let (mut mode, mut evict, mut rounds) = (RequestedMode::Auto, true, 1);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        match name.as_str() {
            "--run" => run = value.parse()?,
            "--step" => step = value.parse()?,
            "--gap" if value == "measured" => gap = None,
            "--gap" => gap = Some(value.parse()?),
            "--mode" => mode = RequestedMode::from_word(&value)?,
            "--evict" => evict = value == "1",
            "--rounds" => rounds = value.parse()?,
            _ => return Err(format!("{name}?").into()),
        }
    }
    let size = std::fs::metadata(&path)?.len();
    let count = size / step;
    let mut best = f64::INFINITY;
    let (mut bytes, mut extents, mut checksum) = (0, 0, 0);
    for _ in 0..rounds {
        let file = MappedFile::open(Path::new(&path), mode)?;
        if evict {
            page_cache::evict(&*file.guarded()?)?;
            let left = page_cache::residency(&*file.guarded()?, 0, size, 0)?.fraction;
            if left > 0.01 {
                return Err(format!("{left} of the file stays in the page cache").into());
            }
        }
        let mut out = vec![1_u8; (count * run) as usize];
        let before = device_bytes()?;
        let begin = Instant::now();
        let selection = Selection::new(0, &[count, run], &[i64::try_from(step)?, 1], 1, size)?;
        let opened = file.opened()?;
        let plan = match gap {
            Some(bytes) => SlicePlan::with_gap(selection, bytes),
            None => plan_for(&opened, 0, selection, MAX_READERS),
        };
        fill(&opened, 0, &plan, Uninit::of(&mut out), MAX_READERS, &mut || true)?;
        best = best.min(begin.elapsed().as_secs_f64());
        bytes = device_bytes()? - before;
        extents = plan.extents().count();
        checksum = out.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    }
    println!(
        "{{\"seconds\": {best}, \"device_bytes\": {bytes}, \"reads\": {extents}, \"checksum\": {checksum}}}"
    );
    Ok(())
}
