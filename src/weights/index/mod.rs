//! The index of a sharded checkpoint, `model.safetensors.index.json`, from bytes:
//! `{"metadata": {...}, "weight_map": {tensor: file, ...}}`.
//!
//! Format: <https://huggingface.co/docs/transformers/big_models#shard-metadata>. An index comes with the
//! weights from wherever they come, so the files' names in it are checked before anything is done with them.

mod json;

use super::header::{Strictness, quoted};
use super::natural;

/// No index is longer. The largest that are published have 13.5 MB.
pub const MAX_INDEX_BYTES: u64 = 256 << 20;
/// As many names as a message shows.
const SHOWN: usize = 5;

/// What an index says. Names are sorted, shards in natural order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Index {
    text: String,
    entries: Vec<Entry>,
    shards: Vec<String>,
    metadata: Option<String>,
}

/// A name, as a range of [`Index::text`], and the number of its shard. 32 bits suffice for
/// [`MAX_INDEX_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    start: u32,
    end: u32,
    shard: u32,
}

impl Index {
    /// Reads the JSON. The error says what is wrong, without a path.
    pub fn parse(json: &[u8], strictness: Strictness) -> Result<Self, String> {
        let text = std::str::from_utf8(json).map_err(|error| format!("invalid UTF-8: {error}"))?;
        let mut index = json::parse(text, strictness)?;
        index.sort_names(strictness)?;
        index.check_shards()?;
        index.sort_shards();
        Ok(index)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The files' names, relative to the index's folder.
    pub fn shards(&self) -> &[String] {
        &self.shards
    }

    /// The names with the numbers of their shards, sorted by name.
    pub fn names(&self) -> impl ExactSizeIterator<Item = (&str, usize)> {
        self.entries.iter().map(|entry| (self.name(entry), entry.shard as usize))
    }

    /// The shard that a tensor is said to be in.
    pub fn shard_of(&self, name: &str) -> Option<usize> {
        let found = self.entries.binary_search_by(|entry| self.name(entry).cmp(name)).ok()?;
        Some(self.entries[found].shard as usize)
    }

    /// The value of `metadata`, as JSON.
    pub fn metadata(&self) -> Option<&str> {
        self.metadata.as_deref()
    }

    fn name(&self, entry: &Entry) -> &str {
        &self.text[entry.start as usize..entry.end as usize]
    }

    fn sort_names(&mut self, strictness: Strictness) -> Result<(), String> {
        let text = &self.text;
        let name = |entry: &Entry| &text[entry.start as usize..entry.end as usize];
        // As transformers writes them.
        if self.entries.windows(2).all(|pair| name(&pair[0]) < name(&pair[1])) {
            return Ok(());
        }
        // Stable: of equal names the last one stays the last.
        self.entries.sort_by(|a, b| name(a).cmp(name(b)));
        let repeated: Vec<_> =
            self.entries.windows(2).filter(|pair| name(&pair[0]) == name(&pair[1])).collect();
        if let (Strictness::Strict, Some([first, ..])) = (strictness, repeated.first()) {
            let count = repeated.len();
            return Err(format!(
                "duplicate keys in `weight_map`: found {count}, the first {}; expected each name once",
                quoted(name(first))
            ));
        }
        if !repeated.is_empty() {
            self.entries.reverse();
            self.entries.dedup_by(|a, b| name(a) == name(b));
            self.entries.reverse();
        }
        Ok(())
    }

    /// Before anything is opened: plain relative paths alone, spelled in one way.
    fn check_shards(&self) -> Result<(), String> {
        let wrong: Vec<_> =
            self.shards.iter().filter_map(|shard| Some((shard, what_is_wrong(shard)?))).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let shown: Vec<_> =
            wrong.iter().take(SHOWN).map(|(shard, why)| format!("{} ({why})", quoted(shard))).collect();
        Err(format!(
            "{} of {} files' names in `weight_map` are not plain relative paths: {}{}; expected names of \
             files in the index's folder or below it",
            wrong.len(),
            self.shards.len(),
            shown.join(", "),
            if wrong.len() > SHOWN { ", ..." } else { "" }
        ))
    }

    fn sort_shards(&mut self) {
        let mut order: Vec<usize> = (0..self.shards.len()).collect();
        order.sort_by(|&a, &b| natural::compare(self.shards[a].as_bytes(), self.shards[b].as_bytes()));
        let mut place = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new as u32;
        }
        for entry in &mut self.entries {
            entry.shard = place[entry.shard as usize];
        }
        self.shards = order.iter().map(|&old| std::mem::take(&mut self.shards[old])).collect();
    }
}

/// Of a file's name in an index. That nothing is read outside the folder does not hang on this (links can
/// lead out as well): it is for the message, and for systems that know drives.
fn what_is_wrong(name: &str) -> Option<&'static str> {
    let bytes = name.as_bytes();
    if name.is_empty() {
        return Some("empty");
    }
    if name.contains('\0') {
        return Some("with a NUL character");
    }
    if name.contains('\\') {
        return Some("with a backslash");
    }
    if name.starts_with('/') {
        return Some("absolute");
    }
    if bytes.len() >= 2 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':' {
        return Some("with a drive");
    }
    let has = |wrong: &str| name.split('/').any(|component| component == wrong);
    if has("..") {
        return Some("leaves a folder by \"..\"");
    }
    (has(".") || has("")).then_some("with \".\" or an empty component")
}
