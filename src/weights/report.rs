//! [`Report`]: collects the problems of a checkpoint into one error, and its oddities into warnings.
//!
//! ```text
//! finding                               strict     upstream's rules
//! a file is missing, refused, broken    error      error
//! the index names an absent tensor      error      warning
//! two files have a tensor, no index     error      warning
//! a second copy, not the index's        warning    warning
//! a tensor is not in the index          warning    warning
//! a header or the metadata is odd       warning    warning
//! ```

use std::collections::HashMap;
use std::mem::take;
use std::sync::Arc;

use super::header::{Header, quoted};
use super::locate::ShardPath;
use super::strictness::Strictness;
use super::tally::Tally;
use crate::error::Error;
use crate::mapped_file::is_gone;

const EXPECTED: &str = "expected each tensor in one file, and every file whole; fetch the checkpoint again";

/// Problems and warnings, collected while a checkpoint is opened.
#[derive(Debug, Default)]
pub struct Report {
    missing_files: Tally,
    refused_files: Tally,
    broken_files: Tally,
    /// Files left unopened because too many others had failed.
    pub skipped_files: Tally,
    /// Tensors that the index names twice.
    pub repeated_entries: Tally,
    /// Tensors named by the index and missing from the file.
    pub missing_names: Tally,
    /// Tensors found in two files without an index to choose between them.
    pub repeated_names: Tally,
    /// Tensors that are also in a file that the index does not name for them.
    pub second_copies: Tally,
    /// Tensors that the index does not name.
    pub unnamed: Tally,
    pub warnings: Vec<String>,
}

impl Report {
    pub fn new(warnings: Vec<String>) -> Self {
        Self { warnings, ..Self::default() }
    }

    /// Records the error of a shard that could not be opened.
    pub fn add_file(&mut self, shard: &ShardPath, error: Error) {
        let path = shard.path.display();
        match error {
            Error::Safetensors { detail, .. } => self.broken_files.add(format_args!("{path} ({detail})")),
            Error::System { errno, .. } if is_gone(errno) => self.missing_files.add(path),
            other => self.refused_files.add(format_args!("{path} ({})", other.message())),
        }
    }

    /// Records a tensor that exists in two files.
    pub fn add_repeat(&mut self, name: &str, first: &ShardPath, second: &ShardPath) {
        let (first, second) = (first.path.display(), second.path.display());
        self.repeated_names.add(format_args!("{} ({first} and {second})", quoted(name)));
    }

    /// Records the headers' own warnings, with the path if there are several files.
    pub fn add_headers(&mut self, headers: &[Arc<Header>], shards: &[ShardPath]) {
        for (header, shard) in headers.iter().zip(shards) {
            let path = if shards.len() > 1 { format!("{}: ", shard.path.display()) } else { String::new() };
            self.warnings.extend(header.warnings().iter().map(|warning| format!("{path}{warning}")));
        }
    }

    /// Returns the union of the headers' metadata. It leaves out keys that differ between headers, with a warning.
    pub fn merge_metadata(&mut self, headers: &[Arc<Header>]) -> Option<Vec<(String, String)>> {
        let mut headers = headers.iter().filter_map(|header| header.metadata()).peekable();
        headers.peek()?;
        let mut keys: Vec<&str> = Vec::new();
        let mut values: HashMap<&str, Option<&str>> = HashMap::new();
        for (key, value) in headers.flatten() {
            let known = values.entry(key).or_insert_with(|| {
                keys.push(key);
                Some(value)
            });
            *known = known.filter(|known| *known == value);
        }
        let (mut differing, mut agreed) = (Tally::default(), Vec::new());
        for key in keys {
            match values[key] {
                Some(value) => agreed.push((key.to_owned(), value.to_owned())),
                None => differing.add(quoted(key)),
            }
        }
        let text = differing.text("key of the files' metadata differs", "keys of the files' metadata differ");
        self.warnings.extend(text.map(|text| format!("{text}; left out")));
        Some(agreed)
    }

    /// Returns all problems as one sentence, if there are any. The other findings become warnings.
    pub fn problems(&mut self, strictness: Strictness) -> Option<String> {
        let unnamed =
            self.unnamed.text("tensor is not named by the index", "tensors are not named by the index");
        let unnamed =
            unnamed.map(|text| format!("{text}; open_checkpoint has them if it gets a list of the files"));
        self.warnings.extend(unnamed);
        let copies = self.second_copies.text("tensor has a second copy", "tensors have a second copy");
        self.warnings.extend(copies.map(|text| format!("{text}; the index decides")));
        if strictness == Strictness::Upstream {
            let (missing, repeated) = (take(&mut self.missing_names), take(&mut self.repeated_names));
            let entries = take(&mut self.repeated_entries)
                .text("tensor is twice in the index", "tensors are twice in the index");
            self.warnings.extend(entries.map(|text| format!("{text}; the last entry decides")));
            self.warnings.extend(
                missing.text(
                    "tensor that the index names is missing",
                    "tensors that the index names are missing",
                ),
            );
            let repeated = repeated.text("tensor is in two files", "tensors are in two files");
            self.warnings.extend(repeated.map(|text| format!("{text}; the last file decides")));
        }
        let problems = [
            self.missing_files.text("file is missing", "files are missing"),
            self.refused_files.text("file is refused", "files are refused"),
            self.broken_files.text("file is broken", "files are broken"),
            self.skipped_files.text("more was not tried", "more were not tried"),
            self.repeated_entries.text("tensor is twice in the index", "tensors are twice in the index"),
            self.missing_names.text(
                "tensor is not in the file that the index names for it",
                "tensors are not in the files that the index names for them",
            ),
            self.repeated_names.text("tensor is in more than one file", "tensors are in more than one file"),
        ];
        let problems: Vec<_> = problems.into_iter().flatten().collect();
        (!problems.is_empty())
            .then(|| format!("the checkpoint is not whole: {}; {EXPECTED}", problems.join("; ")))
    }

    /// Returns a remedy, for example `strict=False`. Functions accept an open checkpoint in place of a path.
    pub fn remedy(&self) -> &'static str {
        let bad_files = [&self.missing_files, &self.refused_files, &self.broken_files];
        match (self.missing_names.count, self.repeated_entries.count) {
            _ if bad_files.iter().any(|files| files.count > 0) => "",
            (0, 0) => "; or use open_checkpoint(..., strict=False), which takes the last copy",
            (0, _) => "; or use open_checkpoint(..., strict=False), which takes the last entry",
            _ => "; or use open_checkpoint(..., strict=False), which leaves these tensors out",
        }
    }
}
