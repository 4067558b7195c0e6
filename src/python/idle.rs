//! Weight files that were closed a moment ago while they were read ahead, and those that probably come next.

use std::path::PathBuf;
use std::sync::Arc;

use super::lead::{FileLead, NextFile};
use crate::error::Result;
use crate::mapped_file::RequestedMode;
use crate::streaming::idle::IdleStore;
use crate::weights::file::WeightFile;
use crate::weights::next_shard::next_shard;
use crate::weights::strictness::Strictness;

static FILES: IdleStore<IdleKey, IdleFile> = IdleStore::new();

/// How a file was opened.
#[derive(Debug, Clone, PartialEq)]
pub struct IdleKey {
    pub path: PathBuf,
    pub mode: RequestedMode,
    pub strictness: Strictness,
    pub ahead_bytes: Option<u64>,
}

/// A file that nobody uses at the moment.
#[derive(Debug)]
struct IdleFile {
    weights: WeightFile,
    lead: Arc<FileLead>,
}

impl Drop for IdleFile {
    fn drop(&mut self) {
        // A new owner has copies.
        if Arc::strong_count(&self.weights.file) == 1 {
            self.lead.close();
            self.weights.file.close();
        }
    }
}

impl IdleKey {
    /// Opens the file, or takes the one that is idle if it is still the same.
    pub fn open(&self) -> Result<(WeightFile, Arc<FileLead>)> {
        let idle = FILES.take(self).filter(|idle| idle.weights.file.check().is_ok());
        if let Some(idle) = idle {
            idle.lead.set_used(true);
            return Ok((idle.weights.clone(), idle.lead.clone()));
        }
        self.open_anew()
    }

    fn open_anew(&self) -> Result<(WeightFile, Arc<FileLead>)> {
        let weights = WeightFile::open(&self.path, self.mode, self.strictness)?;
        Ok((weights, Arc::new(FileLead::new(self.ahead_bytes, self.next()))))
    }

    fn next(&self) -> Option<NextFile> {
        let key = Self { path: next_shard(&self.path)?, ..self.clone() };
        let path = key.path.clone();
        Some(NextFile::new(path, self.mode, move |guess, before| {
            let _on_its_way = FILES.expect(key.clone());
            let (weights, lead) = key.open_anew()?;
            lead.begin(&weights.header, weights.file.opened()?, guess)?;
            let before = before.clone();
            let is_likely = move || before.upgrade().is_some_and(|lead| lead.is_used());
            FILES.hold(key.clone(), IdleFile { weights, lead }, Box::new(is_likely));
            Ok(())
        }))
    }

    /// Closes a file. While it is read ahead, it is kept for a moment.
    pub fn let_go(&self, weights: &WeightFile, lead: &Arc<FileLead>) {
        lead.set_used(false);
        if !lead.has_more() {
            lead.close();
            weights.file.close();
        } else if let Some(file) = weights.file.hand_over() {
            let weights = WeightFile { file: Arc::new(file), header: weights.header.clone() };
            FILES.put(self.clone(), IdleFile { weights, lead: lead.clone() });
        }
    }
}
