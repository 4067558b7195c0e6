//! Many safetensors files as one set of names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::mapped_file::file_set::{Budget, FileSet, Kept};
use crate::mapped_file::{Facts, Identity, Mode, Origin, RequestedMode, descriptor_limit, identity_at};
use crate::parallel::in_parallel;

use super::file::{WeightFile, read_header};
use super::header::{Header, Strictness, TensorEntry};
use super::index::Index;
use super::merge::{self, Merged};
use super::problems::Problems;
use super::source::{Plan, ToOpen, blame_checkpoint};
use super::table::{Table, match_names};

/// A file that takes longer to open waits for a disk or a server, not for a processor.
const SLOW: Duration = Duration::from_millis(2);
/// Threads that wait for a server at the same time, at most.
const WAITING_THREADS: usize = 64;
/// Descriptors that each of them has room for.
const DESCRIPTORS_PER_THREAD: usize = 16;
/// Files that are worth one more thread where opening costs time of a processor.
const FILES_PER_THREAD: usize = 4;

/// Some or all tensors of some files. Each name is there once.
#[derive(Debug)]
pub struct Checkpoint {
    paths: Vec<PathBuf>,
    headers: Vec<Arc<Header>>,
    files: FileSet,
    table: Table,
    index: Option<(PathBuf, Identity)>,
    index_metadata: Option<String>,
    metadata: Option<Vec<(String, String)>>,
    warnings: Vec<String>,
}

/// A file whose header was read.
#[derive(Default)]
pub(super) struct Read {
    /// `None` if that failed.
    pub kept: Option<Kept>,
    pub header: Arc<Header>,
    /// The ranks of the names that the index has for this file, in order of names.
    pub ranks: Vec<u32>,
    /// The ranks of the others.
    pub unnamed: Vec<u32>,
}

impl Plan {
    /// Opens the files, in parallel, and checks that they are what the index says.
    pub fn open(self, mode: RequestedMode, strictness: Strictness) -> Result<Checkpoint> {
        let budget = Budget::for_files(self.files.len());
        let index = self.index.as_ref().map(|found| &found.index);
        let wanted = index.map(by_file).unwrap_or_default();
        let read_one = |number: usize| read(&self.files[number], number, &wanted, mode, strictness, &budget);
        let outcomes = read_all(&self.files, &read_one)?;
        let mut problems = Problems::default();
        let mut all = Vec::with_capacity(outcomes.len());
        let alone = self.files.len() == 1 && index.is_none();
        for (file, outcome) in self.files.iter().zip(outcomes) {
            all.push(match outcome {
                Ok(found) => found,
                Err(error) if alone => return Err(blame(file, error)),
                Err(error) => {
                    problems.add_file(file, error)?;
                    Read::default()
                }
            });
        }
        let headers: Vec<_> = all.iter().map(|found| found.header.clone()).collect();
        let merged = match index {
            _ if alone => Merged { table: Table::of_one_file(), warnings: Vec::new() },
            Some(index) => merge::by_index(index, &all, &self.files, strictness, &mut problems),
            None => merge::by_order(&headers, &self.files, strictness, &mut problems),
        };
        if let Some(text) = problems.text() {
            let path = self.index.map_or(self.path, |found| found.path);
            let detail = format!("the checkpoint is not whole: {text}; {}", merge::EXPECTED);
            return Err(Error::Safetensors { path, detail });
        }
        if let Some(found) = &self.index {
            check_index(&found.path, &found.identity)?;
        }
        let mut warnings = self.warnings;
        warnings.extend(merged.warnings);
        warnings.extend(merge::header_warnings(&headers, &self.files));
        let metadata = merge::metadata(&headers, &mut warnings);
        Ok(Checkpoint {
            paths: self.files.into_iter().map(|file| file.path).collect(),
            headers,
            files: FileSet::new(all.into_iter().filter_map(|found| found.kept).collect(), mode, budget),
            table: merged.table,
            index_metadata: index_metadata(self.index.as_ref().map(|found| &found.index)),
            index: self.index.map(|found| (found.path, found.identity)),
            metadata,
            warnings,
        })
    }
}

impl Checkpoint {
    pub fn len(&self) -> usize {
        self.table.len(&self.headers)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// In order of the files, and in each of the data.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.table.names(&self.headers)
    }

    /// The number of a tensor's file, and what its header says of it.
    pub fn tensor(&self, name: &str) -> Option<(usize, TensorEntry<'_>)> {
        let (file, rank) = self.table.find(&self.headers, name)?;
        Some((file as usize, self.headers[file as usize].nth(rank as usize)))
    }

    /// A file, opened again if it was closed to make room for others.
    pub fn file(&self, number: usize) -> Result<WeightFile> {
        Ok(WeightFile::from_parts(self.files.get(number)?, self.headers[number].clone()))
    }

    /// The same, if it is open: without waiting for storage.
    pub fn open_file(&self, number: usize) -> Option<WeightFile> {
        Some(WeightFile::from_parts(self.files.get_open(number)?, self.headers[number].clone()))
    }

    pub fn header(&self, number: usize) -> &Header {
        &self.headers[number]
    }

    /// As they were named.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// What all files that have a key say of it; `None` if no header has any.
    pub fn metadata(&self) -> Option<&[(String, String)]> {
        self.metadata.as_deref()
    }

    /// The index's own `metadata`, as JSON.
    pub fn index_metadata(&self) -> Option<&str> {
        self.index_metadata.as_deref()
    }

    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The weakest way in which a file is read, the first such file, and how many there are.
    pub fn weakest(&self) -> Option<(&Path, &Facts, usize)> {
        let strength = |mode: Mode| [Mode::Read, Mode::Private, Mode::Shared].iter().position(|&m| m == mode);
        let modes = || (0..self.paths.len()).map(|number| strength(self.files.facts(number).mode));
        let weakest = modes().min()?;
        let first = modes().position(|mode| mode == weakest)?;
        let count = modes().filter(|&mode| mode == weakest).count();
        Some((&self.paths[first], self.files.facts(first), count))
    }

    /// Are the index and every file still those that were opened?
    pub fn check(&self) -> Result<()> {
        if let Some((path, identity)) = &self.index {
            check_index(path, identity)?;
        }
        let threads = self.paths.len().div_ceil(FILES_PER_THREAD).min(WAITING_THREADS);
        in_parallel(self.paths.len(), threads, |number| self.files.check(number)).map(drop)
    }

    /// How many files are open.
    pub fn open_count(&self) -> usize {
        self.files.open_count()
    }

    pub fn is_closed(&self) -> bool {
        self.files.is_closed()
    }

    pub fn close(&self) {
        self.files.close();
    }
}

fn read(
    file: &ToOpen,
    number: usize,
    wanted: &[Vec<&str>],
    mode: RequestedMode,
    strictness: Strictness,
    budget: &Budget,
) -> Result<Read> {
    let opened = file.origin.open(mode)?;
    let header = read_header(&opened, strictness)?;
    let names = wanted.get(number).map(|names| match_names(&header, names));
    let (ranks, unnamed) = names.unwrap_or_default();
    Ok(Read { kept: Some(Kept::new(opened, budget)), header: Arc::new(header), ranks, unnamed })
}

type Outcome = Result<Read>;

/// The first file tells what opening costs here. Errors that no file is to blame for end it at once.
fn read_all(files: &[ToOpen], read_one: &(impl Fn(usize) -> Outcome + Sync)) -> Result<Vec<Outcome>> {
    let Some(rest) = files.len().checked_sub(1) else { return Ok(Vec::new()) };
    let attempt = |number: usize| match read_one(number) {
        Err(error) if !Problems::may_add(&files[number], &error) && rest > 0 => Err(error),
        outcome => Ok(outcome),
    };
    let start = Instant::now();
    let first = attempt(0)?;
    let threads = if start.elapsed() > SLOW {
        WAITING_THREADS.min(descriptor_limit() / DESCRIPTORS_PER_THREAD)
    } else {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        processors.min(rest.div_ceil(FILES_PER_THREAD))
    };
    let mut outcomes = vec![first];
    outcomes.append(&mut in_parallel(rest, threads, |number| attempt(number + 1))?);
    Ok(outcomes)
}

/// The names that the index has for each file, sorted.
fn by_file(index: &Index) -> Vec<Vec<&str>> {
    let mut names = vec![Vec::new(); index.shards().len()];
    for (name, shard) in index.names() {
        names[shard].push(name);
    }
    names
}

fn blame(file: &ToOpen, error: Error) -> Error {
    match file.origin {
        Origin::Path(_) => error,
        Origin::Beneath(..) => blame_checkpoint(error),
    }
}

fn index_metadata(index: Option<&Index>) -> Option<String> {
    index?.metadata().map(str::to_owned)
}

/// An index is rewritten when its shards are, so this also tells of those.
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
