//! [`Report`]: the problems of a checkpoint, together in one error, and its oddities as warnings.
//!
//! ```text
//! finding                               strict     upstream's rules
//! a file is missing, refused, broken    error      error
//! the index names an absent tensor      error      warning
//! a tensor is in two files              error      warning
//! a tensor is not in the index          warning    warning
//! a header or the metadata is odd       warning    warning
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::catalog::Findings;
use super::header::{Header, quoted};
use super::locate::ShardPath;
use super::strictness::Strictness;
use super::tally::Tally;
use crate::error::{Error, Result};
use crate::mapped_file::is_gone;

const EXPECTED: &str = "expected each tensor in one file, and every file whole; fetch the checkpoint again, or name the files \
     that are meant as a list";

/// Problems and warnings, collected while a checkpoint is opened.
#[derive(Debug, Default)]
pub struct Report {
    missing_files: Tally,
    refused_files: Tally,
    broken_files: Tally,
    skipped_files: Tally,
    missing_names: Tally,
    repeated_names: Tally,
    pub warnings: Vec<String>,
}

impl Report {
    pub fn new(warnings: Vec<String>) -> Self {
        Self { warnings, ..Self::default() }
    }

    /// Records why a shard could not be opened. Returns an error that is not the checkpoint's fault.
    pub fn add_file(&mut self, shard: &ShardPath, error: Error) -> Result<()> {
        if !shard.is_to_blame(&error) {
            return Err(error);
        }
        let path = shard.path.display();
        match error {
            Error::Safetensors { detail, .. } => self.broken_files.add(format_args!("{path} ({detail})")),
            Error::System { errno, .. } if is_gone(errno) => self.missing_files.add(path),
            other => self.refused_files.add(format_args!("{path} ({})", other.message())),
        }
        Ok(())
    }

    /// Records a shard that was not tried, because too many others had failed.
    pub fn add_skipped(&mut self, shard: &ShardPath) {
        self.skipped_files.add(shard.path.display());
    }

    /// Records where headers and index disagree. `used` says which of two tensors of one name counts.
    pub fn add_findings(&mut self, findings: Findings, used: &str, strictness: Strictness) {
        let Findings { missing, repeated, unnamed } = findings;
        if !unnamed.is_empty() {
            self.warnings.push(format!(
                "{}; to have them, name the files themselves as a list",
                unnamed.text("tensor is not named by the index", "tensors are not named by the index")
            ));
        }
        if strictness == Strictness::Strict {
            (self.missing_names, self.repeated_names) = (missing, repeated);
            return;
        }
        if !missing.is_empty() {
            self.warnings.push(
                missing.text(
                    "tensor that the index names is missing",
                    "tensors that the index names are missing",
                ),
            );
        }
        if !repeated.is_empty() {
            let text = repeated.text("tensor is in two files", "tensors are in two files");
            self.warnings.push(format!("{text}; {used} are used"));
        }
    }

    /// Records the headers' own warnings, with the path where there are several files.
    pub fn add_headers(&mut self, headers: &[Arc<Header>], shards: &[ShardPath]) {
        for (header, shard) in headers.iter().zip(shards) {
            let path = if shards.len() > 1 { format!("{}: ", shard.path.display()) } else { String::new() };
            self.warnings.extend(header.warnings().iter().map(|warning| format!("{path}{warning}")));
        }
    }

    /// Returns the union of the headers' metadata. Keys on which two headers differ are left out, with a warning.
    pub fn merge_metadata(&mut self, headers: &[Arc<Header>]) -> Option<Vec<(String, String)>> {
        let mut keys: Vec<&str> = Vec::new();
        let mut values: HashMap<&str, Option<&str>> = HashMap::new();
        let mut any = false;
        for pairs in headers.iter().filter_map(|header| header.metadata()) {
            any = true;
            for (key, value) in pairs {
                match values.entry(key) {
                    Entry::Vacant(vacant) => {
                        keys.push(key);
                        vacant.insert(Some(value));
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
            let text =
                differing.text("key of the files' metadata differs", "keys of the files' metadata differ");
            self.warnings.push(format!("{text}; left out"));
        }
        any.then_some(agreed)
    }

    /// Returns all problems as one sentence, if there are any.
    pub fn problems(&self) -> Option<String> {
        let kinds = [
            (&self.missing_files, "file is missing", "files are missing"),
            (&self.refused_files, "file is refused", "files are refused"),
            (&self.broken_files, "file is broken", "files are broken"),
            (&self.skipped_files, "more was not tried", "more were not tried"),
            (
                &self.missing_names,
                "tensor is not in the file that the index names for it",
                "tensors are not in the files that the index names for them",
            ),
            (&self.repeated_names, "tensor is in more than one file", "tensors are in more than one file"),
        ];
        let told: Vec<_> = kinds
            .iter()
            .filter(|(tally, ..)| !tally.is_empty())
            .map(|(tally, one, many)| tally.text(one, many))
            .collect();
        (!told.is_empty()).then(|| format!("the checkpoint is not whole: {}; {EXPECTED}", told.join("; ")))
    }
}
