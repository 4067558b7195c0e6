//! The headers of several files as one table of names, and what they do not agree on.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::checkpoint::Read;
use super::header::{Header, Strictness, quoted};
use super::index::Index;
use super::problems::{Problems, Tally};
use super::source::ToOpen;
use super::table::{ABSENT, At, Table, name, sorted};

/// What the sum of all problems comes to.
pub const EXPECTED: &str = "expected each tensor in one file, and every file whole; fetch the checkpoint again, or name the files \
     that are meant as a list";

pub struct Merged {
    pub table: Table,
    pub warnings: Vec<String>,
}

/// The index decides. What upstream makes of a tensor that is not there is left to the model that misses
/// it; so without strictness it is told in a warning, and so is one that another file has too.
pub fn by_index(
    index: &Index,
    read: &[Read],
    files: &[ToOpen],
    strictness: Strictness,
    problems: &mut Problems,
) -> Merged {
    let headers: Vec<_> = read.iter().map(|found| found.header.clone()).collect();
    let mut missing = Tally::default();
    let mut next: Vec<_> = read.iter().map(|found| found.ranks.iter()).collect();
    let mut by_name: Vec<At> = Vec::with_capacity(index.len());
    for (name, file) in index.names() {
        match next[file].next() {
            Some(&rank) if rank != ABSENT => by_name.push((file as u32, rank)),
            None => {} // of a file that is missing itself
            Some(_) => missing.add(format_args!("{} ({})", quoted(name), files[file].path.display())),
        }
    }
    let (mut repeated, mut unnamed) = (Tally::default(), Tally::default());
    for ((found, file), header) in read.iter().zip(files).zip(&headers) {
        for &rank in &found.unnamed {
            let name = header.nth(rank as usize).name;
            match index.shard_of(name) {
                Some(other) => repeated.add(format_args!(
                    "{} ({} and {})",
                    quoted(name),
                    files[other].path.display(),
                    file.path.display()
                )),
                None => unnamed.add(format_args!("{} ({})", quoted(name), file.path.display())),
            }
        }
    }
    let mut warnings = Vec::new();
    if !unnamed.is_empty() {
        warnings.push(format!(
            "{}; to have them, name the files themselves as a list",
            unnamed.text("tensor is not named by the index", "tensors are not named by the index")
        ));
    }
    if strictness == Strictness::Upstream {
        if !missing.is_empty() {
            warnings.push(
                missing.text(
                    "tensor that the index names is missing",
                    "tensors that the index names are missing",
                ),
            );
        }
        if !repeated.is_empty() {
            warnings.push(format!(
                "{}; those that the index names are used",
                repeated.text("tensor is in two files", "tensors are in two files")
            ));
        }
    } else {
        (problems.missing_names, problems.repeated_names) = (missing, repeated);
    }
    Merged { table: Table::new(&headers, by_name), warnings }
}

/// Without an index each name must be in one file; without strictness the last file counts, as it does for
/// who loads one after the other into a dict.
pub fn by_order(
    headers: &[Arc<Header>],
    files: &[ToOpen],
    strictness: Strictness,
    problems: &mut Problems,
) -> Merged {
    let mut by_name = sorted(headers);
    let mut repeated = Tally::default();
    for pair in by_name.windows(2).filter(|pair| name(headers, pair[0]) == name(headers, pair[1])) {
        let path = |(file, _): At| files[file as usize].path.display();
        let name = quoted(name(headers, pair[0]));
        repeated.add(format_args!("{name} ({} and {})", path(pair[0]), path(pair[1])));
    }
    let mut warnings = Vec::new();
    if !repeated.is_empty() {
        if strictness == Strictness::Upstream {
            warnings.push(format!(
                "{}; those of the last file are used",
                repeated.text("tensor is in two files", "tensors are in two files")
            ));
            by_name.reverse();
            by_name.dedup_by(|a, b| name(headers, *a) == name(headers, *b));
            by_name.reverse();
        } else {
            problems.repeated_names = repeated;
        }
    }
    Merged { table: Table::new(headers, by_name), warnings }
}

/// What each header has to be warned of, with its file where there are several.
pub fn header_warnings(headers: &[Arc<Header>], files: &[ToOpen]) -> Vec<String> {
    let of = |(header, file): (&Arc<Header>, &ToOpen)| {
        let path = if files.len() > 1 { format!("{}: ", file.path.display()) } else { String::new() };
        let texts: Vec<_> = header.warnings().iter().map(|warning| format!("{path}{warning}")).collect();
        texts
    };
    headers.iter().zip(files).flat_map(of).collect()
}

/// The union of what the headers say, without those keys on which two of them differ.
pub fn metadata(headers: &[Arc<Header>], warnings: &mut Vec<String>) -> Option<Vec<(String, String)>> {
    let mut keys: Vec<&str> = Vec::new();
    let mut values: HashMap<&str, Option<&str>> = HashMap::new();
    let mut any = false;
    for pairs in headers.iter().filter_map(|header| header.metadata()) {
        any = true;
        for (key, value) in pairs {
            match values.entry(key) {
                Entry::Vacant(place) => {
                    keys.push(key);
                    place.insert(Some(value));
                }
                Entry::Occupied(mut known) if *known.get() != Some(value) => {
                    known.insert(None);
                }
                Entry::Occupied(_) => {}
            }
        }
    }
    let (mut differing, mut agreed) = (Tally::default(), Vec::new());
    for key in keys {
        match values[key] {
            Some(value) => agreed.push((key.to_owned(), value.to_owned())),
            None => differing.add(quoted(key)),
        }
    }
    if !differing.is_empty() {
        let text = differing.text("key of the files' metadata differs", "keys of the files' metadata differ");
        warnings.push(format!("{text}; left out"));
    }
    any.then_some(agreed)
}
