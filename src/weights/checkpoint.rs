//! [`Checkpoint`]: several safetensors files as one set of names.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::catalog::{Catalog, keep};
use super::file::WeightFile;
use super::header::{Header, TensorEntry};
use super::locate::{ShardList, blame_checkpoint};
use super::open::{OpenedShard, WAITING_THREADS, open_shards};
use super::report::Report;
use super::strictness::Strictness;
use crate::error::{Error, Result};
use crate::fetch::crew::KeepGoing;
use crate::mapped_file::file_set::{DescriptorBudget, FileSet};
use crate::mapped_file::{Facts, Identity, RequestedMode, identity_at};
use crate::os::process::parallel::{FILES_PER_THREAD, in_parallel};

/// How the tensors of several files form one set of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assembly {
    /// Each name exists once. Any problem is an error.
    Whole,
    /// Each name exists once. Files and tensors with problems are left out, and the problems are recorded.
    Partial,
    /// Without an index, a name begins with the number of its file, so several files may share a name.
    Apart,
}

/// Tensors of several files, by name. Each name exists once.
#[derive(Debug)]
pub struct Checkpoint {
    /// The paths of the files, as the caller or the checkpoint spells them.
    pub paths: Vec<PathBuf>,
    headers: Vec<Arc<Header>>,
    pub files: FileSet,
    catalog: Catalog,
    index: Option<(PathBuf, Identity)>,
    /// The `metadata` of the index, as JSON.
    pub index_metadata: Option<String>,
    /// The headers' metadata, without keys that differ between headers; `None` if no header has any.
    pub metadata: Option<Vec<(String, String)>>,
    pub warnings: Vec<String>,
    /// Why the checkpoint is incomplete, if it was opened anyway.
    pub problem: Option<String>,
}

impl Checkpoint {
    /// Opens the files in parallel, and compares them with the index.
    ///
    /// The calling thread calls `keep_going` now and then. If it returns `false`, opening stops with an error.
    pub fn open(
        list: ShardList,
        mode: RequestedMode,
        strictness: Strictness,
        assembly: Assembly,
        keep_going: &mut KeepGoing<'_>,
    ) -> Result<Self> {
        let budget = DescriptorBudget::for_files(list.shards.len());
        let outcomes = open_shards(&list.shards, mode, strictness, &budget, keep_going)?;
        let ShardList { path, mut shards, index, warnings } = list;
        let mut report = Report::new(warnings);
        if let Some(found) = &index {
            report.repeated_entries = found.index.repeated.clone();
        }
        let alone = shards.len() == 1 && index.is_none();
        let mut opened = Vec::with_capacity(outcomes.len());
        for (shard, outcome) in shards.iter().zip(outcomes) {
            opened.push(match outcome {
                Some(Ok(found)) => found,
                Some(Err(error)) if alone => return Err(blame_checkpoint(error)),
                Some(Err(error)) => {
                    report.add_file(shard, error);
                    OpenedShard::default()
                }
                None => {
                    report.skipped_files.add(shard.path.display());
                    OpenedShard::default()
                }
            });
        }
        let mut headers: Vec<_> = opened.iter().map(|shard| shard.header.clone()).collect();
        let mut catalog = match &index {
            None if assembly == Assembly::Apart => Catalog::Apart,
            _ if alone => Catalog::OfOneFile,
            Some(found) => Catalog::by_index(&found.index, &opened, &shards, &mut report)?,
            None => Catalog::by_order(&headers, &shards, &mut report)?,
        };
        let problem = report.problems(strictness);
        if assembly == Assembly::Partial {
            let is_open: Vec<_> = opened.iter().map(|shard| shard.kept.is_some()).collect();
            catalog.keep_files(&is_open);
            keep(&mut headers, &is_open);
            keep(&mut shards, &is_open);
        } else if let Some(detail) = problem {
            let detail = detail + report.remedy();
            return Err(Error::Safetensors { path: index.map_or(path, |found| found.path), detail });
        }
        if let Some(found) = &index {
            check_index(&found.path, &found.identity)?;
        }
        report.add_headers(&headers, &shards);
        let metadata = report.merge_metadata(&headers);
        let kept = opened.into_iter().filter_map(|shard| shard.kept).collect();
        Ok(Self {
            paths: shards.into_iter().map(|shard| shard.path).collect(),
            headers,
            files: FileSet::new(kept, mode, budget),
            catalog,
            index_metadata: index.as_ref().and_then(|found| found.index.metadata()).map(str::to_owned),
            index: index.map(|found| (found.path, found.identity)),
            metadata,
            warnings: report.warnings,
            problem,
        })
    }

    pub fn len(&self) -> usize {
        self.catalog.len(&self.headers)
    }

    /// Returns the names in order of the files, and for each file in order of the data.
    pub fn names(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.catalog.names(&self.headers)
    }

    /// Returns the number of a tensor's file, and the tensor's entry in the header.
    pub fn tensor(&self, name: &str) -> Option<(usize, TensorEntry<'_>)> {
        let (file, rank) = self.catalog.find(&self.headers, name)?;
        Some((file as usize, self.headers[file as usize].nth(rank as usize)))
    }

    pub fn header(&self, number: usize) -> &Header {
        &self.headers[number]
    }

    /// Returns a file. Opens it again if it was closed because of the limit of open files.
    pub fn file(&self, number: usize) -> Result<WeightFile> {
        Ok(WeightFile { file: self.files.get(number)?, header: self.headers[number].clone() })
    }

    /// Returns a file if it is open, without waiting for storage.
    pub fn open_file(&self, number: usize) -> Option<WeightFile> {
        Some(WeightFile { file: self.files.get_open(number)?, header: self.headers[number].clone() })
    }

    /// Returns the facts of the weakest mode in use, the path of the first file in that mode, and the number of such
    /// files.
    pub fn weakest(&self) -> Option<(&Path, &Facts, usize)> {
        let (first, count) = self.files.weakest(0..self.paths.len())?;
        Some((&self.paths[first], self.files.facts(first), count))
    }

    /// Checks that neither the index nor any file has been replaced or changed since it was opened.
    pub fn check(&self) -> Result<()> {
        if let Some((path, identity)) = &self.index {
            check_index(path, identity)?;
        }
        let threads = self.paths.len().div_ceil(FILES_PER_THREAD).min(WAITING_THREADS);
        in_parallel(self.paths.len(), threads, |number| self.files.check(number)).map(drop)
    }
}

/// Checks the index. Tools that rewrite shards also rewrite the index, so this detects them too.
fn check_index(path: &Path, expected: &Identity) -> Result<()> {
    let changed = |detail: String| Error::FileChanged { path: path.into(), detail };
    let found = identity_at(path)
        .map_err(|errno| changed(format!("the index is gone: {}", crate::error::errno_text(errno))))?;
    let key = |of: &Identity| (of.device, of.inode, of.size, of.modified);
    if key(&found) == key(expected) {
        return Ok(());
    }
    Err(changed("the index was rewritten or replaced since it was read; open the checkpoint again".into()))
}
