//! Joins many token files into one sequence of tokens.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::file_set::{DescriptorBudget, FileSet, Kept};
use crate::mapped_file::{Facts, Opened, View, descriptor_limit};
use crate::os::memory::Uninit;
use crate::os::memory::advise::Advice;
use crate::os::process::fork;
use crate::os::process::parallel::{FILES_PER_THREAD, in_parallel};

use super::corpus_files::CorpusFiles;
use super::fingerprint;
use super::format::checked_index::CheckedIndex;
use super::format::documents::DocumentTable;
use super::format::layout::{Format, Opener, TokenFile, TokenLayout, item_bytes, token_dtype_name};
use super::format::open::open;
use super::format::sequences::{Overlap, TokenRun};

/// Maximum number of threads that open files. It exceeds the number of processors, because each may wait for a server.
const OPENING_THREADS: usize = 16;

/// A file of a corpus, or a piece of it: a part of a corpus may begin and end within files.
#[derive(Debug, Clone)]
pub struct Shard {
    /// The absolute path of the file with the tokens.
    pub path: PathBuf,
    pub layout: TokenLayout,
    /// Position of the first token in the corpus.
    pub start: u64,
    /// The first token's number in the file, in the order of its index.
    pub file_start: u64,
    /// Number of all tokens in the file.
    pub file_tokens: u64,
    /// Number of the file in the set.
    pub(super) file: usize,
    pub(super) index: Option<ShardIndex>,
    /// Number of its first document.
    pub(super) first_document: u64,
}

/// The file that records a shard's documents.
#[derive(Debug, Clone)]
pub(super) struct ShardIndex {
    /// Its number among the files of the corpus.
    pub file: usize,
    pub documents: Arc<dyn DocumentTable>,
    /// Number of the first document in the table.
    pub first: u64,
    pub count: u64,
    pub checked: Arc<CheckedIndex>,
}

impl Shard {
    /// Returns whether the tokens have another order than in the file, or whether some are left out or repeated.
    pub fn is_view(&self) -> bool {
        self.index.as_ref().is_some_and(|index| index.checked.order.is_some())
    }
}

#[derive(Debug)]
pub struct TokenCorpus {
    pub shards: Vec<Shard>,
    pub dtype: Dtype,
    pub(super) len: u64,
    /// The number of documents; `None` unless every shard records its documents.
    pub document_count: Option<u64>,
    /// The token files in the order of the shards, then the files that record documents. Views stay valid after these
    /// files are closed.
    pub(super) files: CorpusFiles,
    pub(super) fingerprint: OnceLock<u64>,
}

/// Tokens of a shard: `[start, stop)`, counted from the first token in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub shard: usize,
    pub start: u64,
    pub stop: u64,
}

impl TokenCorpus {
    /// Opens the files in parallel, and checks headers and sizes. The files must agree in type and format.
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
            let TokenFile { file, layout, index } = open(&paths[index], dtype, format, how)?;
            let index = index.map(|index| (Kept::new(index.file, &budget), index.documents, index.checked));
            Ok((file.absolute().to_owned(), layout, Kept::new(file, &budget), index))
        })?;
        for (path, layout, file, index) in opened {
            if let Some(first) = shards.first() {
                agree(first, &path, &layout)?;
            }
            let index = index.map(|(file, documents, checked)| {
                indices.push(file);
                let file = paths.len() + indices.len() - 1;
                let count = documents.count();
                ShardIndex { file, documents: documents.into(), first: 0, count, checked }
            });
            let count = index.as_ref().map_or(0, |index| index.count);
            shards.push(Shard {
                path,
                layout,
                start: len,
                file_start: 0,
                file_tokens: layout.tokens,
                file: data.len(),
                index,
                first_document: documents,
            });
            data.push(file);
            len = add(len, layout.tokens, "tokens")?;
            documents = add(documents, count, "documents")?;
        }
        let Some(first) = shards.first() else { return Err(Error::argument("no token files were given")) };
        data.append(&mut indices);
        Ok(Self {
            dtype: first.layout.dtype,
            document_count: shards.iter().all(|shard| shard.index.is_some()).then_some(documents),
            files: CorpusFiles::new(FileSet::new(data, how.mode, budget)),
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

    /// Returns the first shard with the weakest read mode, and the number of such shards.
    pub fn weakest(&self) -> Option<(usize, usize)> {
        self.files.set().weakest(self.shards.iter().map(|shard| shard.file))
    }

    /// Returns the facts of a shard's file from its first opening.
    pub fn facts(&self, shard: usize) -> &Facts {
        self.files.set().facts(self.shards[shard].file)
    }

    /// Returns the file of a shard, ready for reading. This is cheap if the file is open: shards share no lock.
    pub fn opened(&self, shard: usize) -> Result<Arc<Opened>> {
        self.files.opened(self.shards[shard].file)
    }

    /// Advises the kernel about all files of the set.
    pub fn advise(&self, advice: Advice) -> Result<()> {
        self.files.set().advise(advice)
    }

    /// Returns the number of open files of the set.
    pub fn open_count(&self) -> usize {
        self.files.set().open_count()
    }

    pub fn is_closed(&self) -> bool {
        self.files.is_closed()
    }

    /// Rejects further reads. The last user among a corpus and its parts closes the files.
    pub fn close(&self) {
        self.files.close();
    }

    pub fn check_range(&self, start: u64, stop: u64) -> Result<()> {
        if start <= stop && stop <= self.len {
            return Ok(());
        }
        Err(Error::index(format!("tokens {start} to {stop} of a corpus of {}", self.len)))
    }

    /// Returns the pieces of shards that make up `[start, stop)` of the corpus, in order.
    pub fn pieces(&self, start: u64, stop: u64) -> Result<impl Iterator<Item = Result<Piece>>> {
        self.check_range(start, stop)?;
        let mut position = start;
        Ok(std::iter::from_fn(move || {
            if position >= stop {
                return None;
            }
            let piece = self.run(position).map(|(shard, run)| {
                let end = stop.min(run.stop);
                let start = run.first + (position - run.start);
                let piece = Piece { shard, start, stop: start + (end - position) };
                position = end;
                piece
            });
            if piece.is_err() {
                position = stop;
            }
            Some(piece)
        }))
    }

    /// Returns the shard of a token, and the longest known run of tokens around it. The run's range is a range of the
    /// corpus.
    pub fn run(&self, token: u64) -> Result<(usize, TokenRun)> {
        self.check_range(token, token.saturating_add(1))?;
        let number = self.index_of(token);
        let shard = &self.shards[number];
        let view = shard.index.as_ref().and_then(|index| Some((index.file, index.checked.order.as_ref()?)));
        let run = match view {
            Some((file, order)) => {
                let index = self.files.opened(file)?;
                let reader = index.reader();
                let run = order.run(&reader, shard.file_start + (token - shard.start))?;
                reader.finish()?;
                run
            }
            None => TokenRun { start: 0, stop: shard.file_tokens, first: 0 },
        };
        // Clip the run to this part of the shard, and convert it to positions in the corpus.
        let low = run.start.max(shard.file_start);
        let high = run.stop.min(shard.file_start + shard.layout.tokens);
        let place = |token: u64| shard.start + (token - shard.file_start);
        let first = run.first + (low - run.start);
        Ok((number, TokenRun { start: place(low), stop: place(high), first }))
    }

    /// Returns the last shard that begins at or before `token`. An empty shard has the same start as the next one.
    pub fn index_of(&self, token: u64) -> usize {
        self.shards.partition_point(|shard| shard.start <= token).saturating_sub(1)
    }

    /// Returns the offset and length in bytes of a piece within its file.
    pub fn byte_range(&self, piece: Piece) -> (u64, u64) {
        let offset = self.shards[piece.shard].layout.data_offset_bytes + piece.start * self.item_bytes();
        (offset, (piece.stop - piece.start) * self.item_bytes())
    }

    /// Returns a view of the tokens, if they lie in a single mapped shard.
    pub fn view(&self, start: u64, stop: u64) -> Result<Option<View>> {
        let mut pieces = self.pieces(start, stop)?;
        match (pieces.next(), pieces.next()) {
            (Some(piece), None) => {
                let piece = piece?;
                let (offset, length) = self.byte_range(piece);
                self.opened(piece.shard)?.array_view(offset, length)
            }
            _ => Ok(None),
        }
    }

    /// Copies tokens. `out` must have `(stop - start) * item_bytes` bytes.
    pub fn read_into(&self, start: u64, stop: u64, mut out: Uninit<'_>) -> Result<()> {
        for piece in self.pieces(start, stop)? {
            let piece = piece?;
            let (offset, length) = self.byte_range(piece);
            self.opened(piece.shard)?.read_into(offset, out.take_front(length as usize))?;
        }
        Ok(())
    }

    /// Checks that shards are complete and unchanged, after ranges of them were copied.
    pub fn verify(&self, shards: impl IntoIterator<Item = usize>) -> Result<()> {
        shards.into_iter().try_for_each(|shard| self.opened(shard)?.verify())
    }

    /// Same as [`Self::verify`], for the end of a batch: it asks the server about unmapped files, even if the kernel's
    /// attributes are fresh.
    pub fn verify_now(&self, shards: impl IntoIterator<Item = usize>) -> Result<()> {
        shards.into_iter().try_for_each(|shard| {
            let opened = self.opened(shard)?;
            if opened.region.is_some() { opened.verify() } else { opened.verify_with_server() }
        })
    }

    /// Checks that no file has changed since it was opened.
    pub fn check(&self) -> Result<()> {
        let index = |shard: &Shard| shard.index.as_ref().map(|index| index.file);
        let files: Vec<usize> =
            self.shards.iter().map(|shard| shard.file).chain(self.shards.iter().filter_map(index)).collect();
        let threads = threads(files.len(), descriptor_limit());
        in_parallel(files.len(), threads, |number| self.files.check(files[number])).map(drop)
    }

    /// Returns the shards whose index lists only the beginning of the token file, each with the number of the file's
    /// tokens.
    pub fn cut_short(&self) -> impl Iterator<Item = (&Shard, u64)> {
        self.shards.iter().filter_map(|shard| {
            let order = shard.index.as_ref()?.checked.order.as_ref()?;
            Some((shard, order.cut_short()?))
        })
    }

    /// Returns the paths of the indexes in which a sequence begins inside the previous one.
    pub fn overlaps(&self) -> impl Iterator<Item = (&Path, Overlap)> {
        self.shards.iter().filter_map(|shard| {
            let index = shard.index.as_ref()?;
            Some((self.files.set().absolute(index.file), index.checked.order.as_ref()?.overlap?))
        })
    }

    /// Returns a number that identifies the data: equal for the same tokens in the same files, on any machine.
    pub fn fingerprint(&self) -> Result<u64> {
        if let Some(&known) = self.fingerprint.get() {
            return Ok(known);
        }
        let count = self.shards.len();
        let parts = in_parallel(count, threads(count, descriptor_limit()), |number| {
            let shard = &self.shards[number];
            let index = shard.index.as_ref().map(|index| self.files.opened(index.file)).transpose()?;
            let order = shard.index.as_ref().and_then(|index| index.checked.order.as_ref());
            let part = (shard.layout.tokens < shard.file_tokens).then_some(shard.file_start);
            fingerprint::of_shard(&shard.layout, part, &*self.opened(number)?, index.as_deref(), order)
        })?;
        let found = fingerprint::of_corpus(self.dtype, self.shards[0].layout.format, &parts);
        Ok(*fork::get_or_make(&self.fingerprint, || found))
    }
}

fn add(sum: u64, more: u64, what: &str) -> Result<u64> {
    sum.checked_add(more).ok_or_else(|| Error::argument(format!("more than 2^64 {what}")))
}

/// Returns the number of threads for opening this many files. Each thread uses up to two descriptors, in addition to
/// the kept files.
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
