//! What is wrong with a checkpoint, told all at once: the first few of each kind, and how many there are.

use std::fmt::Display;

use crate::error::Error;
use crate::mapped_file::{Origin, is_gone, is_refusal};

use super::source::ToOpen;

/// As many of a kind as a message shows.
const SHOWN: usize = 5;

/// One kind.
#[derive(Debug, Default)]
pub struct Tally {
    shown: Vec<String>,
    count: usize,
}

impl Tally {
    pub fn add(&mut self, what: impl Display) {
        if self.shown.len() < SHOWN {
            self.shown.push(what.to_string());
        }
        self.count += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// `"3 tensors are missing: a, b, c"`.
    pub fn text(&self, one: &str, many: &str) -> String {
        format!("{} {}: {}", self.count, if self.count == 1 { one } else { many }, self.names())
    }

    /// `"a, b, c, ..."`.
    pub fn names(&self) -> String {
        let more = if self.count > self.shown.len() { ", ..." } else { "" };
        format!("{}{more}", self.shown.join(", "))
    }
}

#[derive(Debug, Default)]
pub struct Problems {
    pub missing_files: Tally,
    pub refused_files: Tally,
    pub broken_files: Tally,
    pub missing_names: Tally,
    pub repeated_names: Tally,
}

impl Problems {
    /// Whether a file's error is one that the checkpoint can be blamed for. A path of the caller's own that leads
    /// nowhere is not.
    pub fn may_add(file: &ToOpen, error: &Error) -> bool {
        match error {
            Error::Safetensors { .. } => true,
            Error::System { errno, .. } => {
                matches!(file.origin, Origin::Beneath(..)) && (is_gone(*errno) || is_refusal(*errno))
            }
            _ => false,
        }
    }

    /// Takes what was wrong with a file; what the checkpoint is not to blame for comes back.
    pub fn add_file(&mut self, file: &ToOpen, error: Error) -> Result<(), Error> {
        if !Self::may_add(file, &error) {
            return Err(error);
        }
        let file = file.path.display();
        match error {
            Error::Safetensors { detail, .. } => self.broken_files.add(format_args!("{file} ({detail})")),
            Error::System { errno, .. } if is_gone(errno) => self.missing_files.add(file),
            other => self.refused_files.add(format_args!("{file} ({})", other.message())),
        }
        Ok(())
    }

    /// All of it, as a sentence.
    pub fn text(&self) -> Option<String> {
        let parts = [
            (&self.missing_files, "file is missing", "files are missing"),
            (&self.refused_files, "file is refused", "files are refused"),
            (&self.broken_files, "file is broken", "files are broken"),
            (
                &self.missing_names,
                "tensor is not in the file that the index names for it",
                "tensors are not in the files that the index names for them",
            ),
            (&self.repeated_names, "tensor is in more than one file", "tensors are in more than one file"),
        ];
        let told: Vec<_> = parts
            .iter()
            .filter(|(tally, ..)| !tally.is_empty())
            .map(|(tally, one, many)| tally.text(one, many))
            .collect();
        (!told.is_empty()).then(|| told.join("; "))
    }
}
