//! Many token files as one axis of tokens.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::file_set::{DescriptorBudget, FileSet, Kept};
use crate::mapped_file::{Opened, View, descriptor_limit};
use crate::os::memory::Uninit;
use crate::os::process::fork;
use crate::os::process::parallel::{FILES_PER_THREAD, in_parallel};

use super::fingerprint;
use super::format::documents::DocumentTable;
use super::format::layout::{Format, Opener, TokenFile, TokenLayout, item_bytes, token_dtype_name};
use super::format::open::open;

/// Upper bound of threads that open files: more than there are processors, since each may wait for a server.
const OPENING_THREADS: usize = 16;

/// One file of a corpus.
#[derive(Debug)]
pub struct Shard {
    /// The file with the tokens, absolute.
    pub path: PathBuf,
    pub layout: TokenLayout,
    /// Position of the first token on the axis.
    pub start: u64,
    /// The record of its documents, if any, and the number of the file that holds it.
    pub(super) documents: Option<(Box<dyn DocumentTable>, usize)>,
    /// Number of its first document.
    pub(super) first_document: u64,
}

#[derive(Debug)]
pub struct TokenCorpus {
    pub shards: Vec<Shard>,
    pub dtype: Dtype,
    len: u64,
    /// The number of documents; `None` unless every shard records its documents.
    pub document_count: Option<u64>,
    /// The token files in the order of the shards, then the files that record documents. When they are closed, views
    /// stay valid.
    pub files: FileSet,
    fingerprint: OnceLock<u64>,
}

/// Tokens of one shard: `[start, stop)` counted from its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub shard: usize,
    pub start: u64,
    pub stop: u64,
}

impl TokenCorpus {
    /// Opens the files, in parallel, and checks headers and sizes. They must agree in type and format.
    pub fn open<'a>(
        paths: &[PathBuf],
        dtype: Option<Dtype>,
        format: Option<Format>,
        how: impl Into<Opener<'a>>,
    ) -> Result<Self> {
        let how = how.into();
        let budget = DescriptorBudget::for_files(2 * paths.len());
        let mut shards: Vec<Shard> = Vec::with_capacity(paths.len());
        let (mut data, mut indices) = (Vec::with_capacity(paths.len()), Vec::new());
        let (mut len, mut documents) = (0_u64, 0_u64);
        let opened = in_parallel(paths.len(), threads(paths.len(), descriptor_limit()), |index| {
            let TokenFile { file, layout, documents } = open(&paths[index], dtype, format, how)?;
            let documents = documents.map(|(table, index)| (table, Kept::new(index, &budget)));
            Ok((file.absolute().to_owned(), layout, Kept::new(file, &budget), documents))
        })?;
        for (path, layout, file, table) in opened {
            if let Some(first) = shards.first() {
                agree(first, &path, &layout)?;
            }
            let count = table.as_ref().map_or(0, |(table, _)| table.count());
            let table = table.map(|(table, index)| {
                indices.push(index);
                (table, paths.len() + indices.len() - 1)
            });
            shards.push(Shard { path, layout, start: len, documents: table, first_document: documents });
            data.push(file);
            len = add(len, layout.tokens, "tokens")?;
            documents = add(documents, count, "documents")?;
        }
        let Some(first) = shards.first() else { return Err(Error::argument("no token files were given")) };
        data.append(&mut indices);
        Ok(Self {
            dtype: first.layout.dtype,
            document_count: shards.iter().all(|shard| shard.documents.is_some()).then_some(documents),
            files: FileSet::new(data, how.mode, budget),
            fingerprint: OnceLock::new(),
            shards,
            len,
        })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn item_bytes(&self) -> u64 {
        item_bytes(self.dtype)
    }

    /// The weakest read mode of the shards: the first such shard, and how many there are.
    pub fn weakest(&self) -> Option<(usize, usize)> {
        self.files.weakest(self.shards.len())
    }

    /// A file, ready for reading. Cheap if the file is open: takes no lock that shards share.
    pub fn opened(&self, file: usize) -> Result<Arc<Opened>> {
        self.files.opened(file)
    }

    pub fn check_range(&self, start: u64, stop: u64) -> Result<()> {
        if start <= stop && stop <= self.len {
            return Ok(());
        }
        Err(Error::index(format!("tokens {start} to {stop} of a corpus of {}", self.len)))
    }

    /// The pieces of shards that make up `[start, stop)` of the axis, in order.
    pub fn pieces(&self, start: u64, stop: u64) -> Result<impl Iterator<Item = Piece>> {
        self.check_range(start, stop)?;
        let first = self.index_of(start);
        let within = self.shards[first..].iter().enumerate().take_while(move |(_, shard)| shard.start < stop);
        Ok(within.map(move |(index, shard)| Piece {
            shard: first + index,
            start: start.saturating_sub(shard.start),
            stop: (stop - shard.start).min(shard.layout.tokens),
        }))
    }

    /// The last shard that begins at or before `token`; empty shards share a start with the next.
    pub fn index_of(&self, token: u64) -> usize {
        self.shards.partition_point(|shard| shard.start <= token).saturating_sub(1)
    }

    /// The bytes of a piece within its file.
    pub fn byte_range(&self, piece: Piece) -> (u64, u64) {
        let offset = self.shards[piece.shard].layout.data_offset_bytes + piece.start * self.item_bytes();
        (offset, (piece.stop - piece.start) * self.item_bytes())
    }

    /// A view of the tokens, if they lie in one mapped shard.
    pub fn view(&self, start: u64, stop: u64) -> Result<Option<View>> {
        let mut pieces = self.pieces(start, stop)?;
        match (pieces.next(), pieces.next()) {
            (Some(piece), None) => {
                let (offset, length) = self.byte_range(piece);
                self.opened(piece.shard)?.array_view(offset, length)
            }
            _ => Ok(None),
        }
    }

    /// Copies tokens out. `out` has `(stop - start) * item_bytes` bytes.
    pub fn read_into(&self, start: u64, stop: u64, mut out: Uninit<'_>) -> Result<()> {
        for piece in self.pieces(start, stop)? {
            let (offset, length) = self.byte_range(piece);
            self.opened(piece.shard)?.read_into(offset, out.take_front(length as usize))?;
        }
        Ok(())
    }

    /// Checks that shards are complete and not rewritten, after ranges of them were copied.
    pub fn verify(&self, shards: impl IntoIterator<Item = usize>) -> Result<()> {
        shards.into_iter().try_for_each(|shard| self.opened(shard)?.verify())
    }

    /// [`Self::verify`] at the end of a batch: asks the server about files that are not mapped, whatever the
    /// kernel still believes.
    pub fn verify_now(&self, shards: impl IntoIterator<Item = usize>) -> Result<()> {
        shards.into_iter().try_for_each(|shard| {
            let opened = self.opened(shard)?;
            if opened.region.is_some() { opened.verify() } else { opened.verify_with_server() }
        })
    }

    /// Checks that no file has changed since it was opened.
    pub fn check(&self) -> Result<()> {
        let files = self.shards.len() + self.shards.iter().filter(|shard| shard.documents.is_some()).count();
        in_parallel(files, threads(files, descriptor_limit()), |index| self.files.check(index)).map(drop)
    }

    /// A number that identifies the data: equal for the same tokens in the same files, on any machine.
    pub fn fingerprint(&self) -> Result<u64> {
        if let Some(&known) = self.fingerprint.get() {
            return Ok(known);
        }
        let count = self.shards.len();
        let parts = in_parallel(count, threads(count, descriptor_limit()), |number| {
            let shard = &self.shards[number];
            let index = shard.documents.as_ref().map(|(_, index)| self.opened(*index)).transpose()?;
            fingerprint::of_shard(&shard.layout, &*self.opened(number)?, index.as_deref())
        })?;
        let found = fingerprint::of_corpus(self.dtype, self.shards[0].layout.format, &parts);
        Ok(*fork::get_or_make(&self.fingerprint, || found))
    }
}

fn add(sum: u64, more: u64, what: &str) -> Result<u64> {
    sum.checked_add(more).ok_or_else(|| Error::argument(format!("more than 2^64 {what}")))
}

/// Returns the number of threads that open this many files. Each thread has up to two descriptors, in addition to the kept
/// files.
fn threads(files: usize, descriptor_limit: usize) -> usize {
    files.div_ceil(FILES_PER_THREAD).min(OPENING_THREADS).min(descriptor_limit / 8).max(1)
}

fn agree(first: &Shard, path: &Path, layout: &TokenLayout) -> Result<()> {
    let known = &first.layout;
    if (known.format, known.dtype) == (layout.format, layout.dtype) {
        return Ok(());
    }
    let describe = |layout: &TokenLayout| {
        format!("{} tokens ({})", token_dtype_name(layout.dtype), layout.format.word())
    };
    let detail = format!(
        "the file holds {}, but {} holds {}; one corpus has one type and one format",
        describe(layout),
        first.path.display(),
        describe(known)
    );
    Err(Error::format(path, None, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_or_descriptors_need_few_threads() {
        let expected =
            [(1, 1024, 1), (40, 1024, 10), (10_000, 1024, OPENING_THREADS), (10_000, 40, 5), (100, 3, 1)];
        for (files, limit, count) in expected {
            assert_eq!(threads(files, limit), count, "{files} files, {limit} descriptors");
        }
    }
}
