//! Many token files as one axis of tokens.

use std::mem::MaybeUninit;
use std::path::PathBuf;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::{MappedFile, RequestedMode, View};

use super::format::{self, Format, Layout, item_bytes, token_dtype_name};

/// One file of a corpus.
#[derive(Debug)]
pub struct Shard {
    pub file: MappedFile,
    pub layout: Layout,
    /// Where its first token stands on the axis.
    pub start: u64,
}

#[derive(Debug)]
pub struct TokenCorpus {
    shards: Vec<Shard>,
    dtype: Dtype,
    len: u64,
}

/// Tokens of one shard: `[start, stop)` counted from its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub shard: usize,
    pub start: u64,
    pub stop: u64,
}

impl TokenCorpus {
    /// Takes files that are open. They must agree in type and format.
    pub fn new(files: Vec<MappedFile>, dtype: Option<Dtype>, format: Option<Format>) -> Result<Self> {
        let mut shards: Vec<Shard> = Vec::with_capacity(files.len());
        let mut len = 0_u64;
        for file in files {
            let layout = format::layout(&file, dtype, format)?;
            if let Some(first) = shards.first() {
                agree(first, &file, &layout)?;
            }
            shards.push(Shard { file, layout, start: len });
            len = len.checked_add(layout.tokens).ok_or_else(|| Error::argument("more than 2^64 tokens"))?;
        }
        let Some(first) = shards.first() else { return Err(Error::argument("no token files were given")) };
        Ok(Self { dtype: first.layout.dtype, shards, len })
    }

    pub fn open(
        paths: &[PathBuf],
        dtype: Option<Dtype>,
        format: Option<Format>,
        mode: RequestedMode,
    ) -> Result<Self> {
        let files: Result<Vec<_>> = paths.iter().map(|path| MappedFile::open(path, mode)).collect();
        Self::new(files?, dtype, format)
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub fn item_bytes(&self) -> u64 {
        item_bytes(self.dtype)
    }

    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The pieces that `[start, stop)` of the axis consists of, in order.
    pub fn pieces(&self, start: u64, stop: u64) -> Result<impl Iterator<Item = Piece>> {
        if start > stop || stop > self.len {
            let detail = format!("tokens {start} to {stop} of a corpus of {}", self.len);
            return Err(Error::Index { detail });
        }
        let first = self.index_of(start);
        let within = self.shards[first..].iter().enumerate().take_while(move |(_, shard)| shard.start < stop);
        Ok(within.map(move |(index, shard)| Piece {
            shard: first + index,
            start: start.saturating_sub(shard.start),
            stop: (stop - shard.start).min(shard.layout.tokens),
        }))
    }

    /// The shard that holds a token of the axis.
    pub fn shard_of(&self, token: u64) -> &Shard {
        &self.shards[self.index_of(token)]
    }

    /// The last shard that begins at or before `token`; empty shards share a start with the next.
    fn index_of(&self, token: u64) -> usize {
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
                self.shards[piece.shard].file.opened()?.view(offset, length)
            }
            _ => Ok(None),
        }
    }

    /// Copies tokens out. `out` has `(stop - start) * item_bytes` bytes.
    pub fn read_into(&self, start: u64, stop: u64, out: &mut [MaybeUninit<u8>]) -> Result<()> {
        let mut rest = out;
        for piece in self.pieces(start, stop)? {
            let (offset, length) = self.byte_range(piece);
            let (part, after) = rest.split_at_mut(length as usize);
            self.shards[piece.shard].file.opened()?.read_into(offset, part)?;
            rest = after;
        }
        Ok(())
    }

    /// Is every shard still the file that was opened?
    pub fn check(&self) -> Result<()> {
        self.shards.iter().try_for_each(|shard| shard.file.check())
    }

    pub fn close(&self) {
        self.shards.iter().for_each(|shard| shard.file.close());
    }
}

fn agree(first: &Shard, file: &MappedFile, layout: &Layout) -> Result<()> {
    let known = &first.layout;
    if (known.format, known.dtype) == (layout.format, layout.dtype) {
        return Ok(());
    }
    let describe =
        |layout: &Layout| format!("{} tokens ({})", token_dtype_name(layout.dtype), layout.format.word());
    let detail = format!(
        "the file holds {}, but {} holds {}; one corpus has one type and one format",
        describe(layout),
        first.file.path().display(),
        describe(known)
    );
    Err(Error::Format { path: file.path().into(), offset: None, detail })
}
