//! Counts similar findings, and keeps the first few for the message.

use std::fmt::Display;

/// Maximum number of findings in a message.
const SHOWN: usize = 5;

/// Findings of one kind.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    shown: Vec<String>,
    pub count: usize,
}

impl Tally {
    pub fn add(&mut self, finding: impl Display) {
        if self.shown.len() < SHOWN {
            self.shown.push(finding.to_string());
        }
        self.count += 1;
    }

    /// Returns `"3 tensors are missing: a, b, c"`, if there are any.
    pub fn text(&self, one: &str, many: &str) -> Option<String> {
        let what = if self.count == 1 { one } else { many };
        (self.count > 0).then(|| format!("{} {what}: {}", self.count, self.names()))
    }

    /// Returns `"a, b, c, ..."`.
    pub fn names(&self) -> String {
        let more = if self.count > self.shown.len() { ", ..." } else { "" };
        format!("{}{more}", self.shown.join(", "))
    }
}

impl<D: Display> FromIterator<D> for Tally {
    fn from_iter<I: IntoIterator<Item = D>>(findings: I) -> Self {
        let mut tally = Self::default();
        findings.into_iter().for_each(|finding| tally.add(finding));
        tally
    }
}
