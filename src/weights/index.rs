//! The index of a sharded checkpoint, `model.safetensors.index.json`, from bytes:
//! `{"metadata": {...}, "weight_map": {tensor: file, ...}}`.
//!
//! Format: <https://huggingface.co/docs/transformers/big_models#shard-metadata>. An index comes from the same source as
//! the weights, so its length is limited, and its names are checked before they are used.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

use serde::de::{self, DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::header::quoted;
use super::json::{Any, Discard, Word};
use super::last_wins::keep_last;
use super::strictness::Strictness;
use super::tally::Tally;
use crate::allocate::{self, OutOfMemory};
use crate::error::{Error, Result};
use crate::natural;

/// Maximum length of an index. The largest published ones have 13.5 MB.
pub const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Maximum number of files in an index. The largest checkpoints have about a thousand.
pub const MAX_SHARDS: usize = 1 << 16;

/// The purpose of memory for an index.
const INDEX: &str = "the index of a checkpoint";

/// The contents of an index. Names are sorted, and shards are in natural order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Index {
    text: String,
    entries: Vec<IndexEntry>,
    shards: Vec<String>,
    metadata: Option<String>,
    /// Names that occur more than once. The last entry of each counts.
    pub repeated: Tally,
}

/// A name, as a range of [`Index::text`], and the number of its shard. 32 bits suffice for [`MAX_INDEX_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IndexEntry {
    start: u32,
    end: u32,
    shard: u32,
}

impl Index {
    /// Reads the JSON. Errors have no path.
    pub fn parse(json: &[u8], strictness: Strictness) -> Result<Self> {
        let text = std::str::from_utf8(json).map_err(|error| invalid(format!("invalid UTF-8: {error}")))?;
        let mut reader = IndexReader { strictness, ..IndexReader::default() };
        reader.index.text = allocate::string(json.len(), INDEX)?;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        Any(IndexVisitor(&mut reader))
            .deserialize(&mut deserializer)
            .and_then(|()| deserializer.end())
            .map_err(|error| {
                reader.refusal.take().unwrap_or_else(|| invalid(format!("invalid JSON: {error}")))
            })?;
        if !reader.has_map {
            return Err(invalid("no `weight_map`: expected an object that names each tensor's file"));
        }
        let mut index = reader.index;
        index.sort_names();
        index.check_shards()?;
        index.sort_shards()?;
        index.text.shrink_to_fit();
        Ok(index)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the files' names, relative to the index's folder.
    pub fn shards(&self) -> &[String] {
        &self.shards
    }

    /// Returns the names with the numbers of their shards, sorted by name.
    pub fn names(&self) -> impl ExactSizeIterator<Item = (&str, usize)> {
        self.entries.iter().map(|entry| (self.name(entry), entry.shard as usize))
    }

    /// Returns the shard that the index lists for a tensor.
    pub fn shard_of(&self, name: &str) -> Option<usize> {
        let found = self.entries.binary_search_by(|entry| self.name(entry).cmp(name)).ok()?;
        Some(self.entries[found].shard as usize)
    }

    /// Returns the value of `metadata`, as JSON that any reader accepts: numbers in range, nesting within serde's
    /// limit.
    pub fn metadata(&self) -> Option<&str> {
        self.metadata.as_deref()
    }

    fn name(&self, entry: &IndexEntry) -> &str {
        &self.text[entry.start as usize..entry.end as usize]
    }

    fn sort_names(&mut self) {
        let text = &self.text;
        let name = |entry: &IndexEntry| &text[entry.start as usize..entry.end as usize];
        // Already sorted: transformers writes indexes so.
        if self.entries.windows(2).all(|pair| name(&pair[0]) < name(&pair[1])) {
            return;
        }
        // Entries with equal names stay in file order, so that the last one comes last.
        self.entries.sort_unstable_by(|a, b| name(a).cmp(name(b)).then(a.start.cmp(&b.start)));
        let same = |a: &IndexEntry, b: &IndexEntry| name(a) == name(b);
        let repeated = self.entries.windows(2).filter(|pair| same(&pair[0], &pair[1]));
        self.repeated = repeated.map(|pair| quoted(name(&pair[0]))).collect();
        if self.repeated.count > 0 {
            keep_last(&mut self.entries, same);
        }
    }

    /// Accepts only plain relative paths. This runs before any file is opened.
    fn check_shards(&self) -> Result<()> {
        let wrong: Tally = self
            .shards
            .iter()
            .filter_map(|shard| Some(format!("{} ({})", quoted(shard), what_is_wrong(shard)?)))
            .collect();
        if wrong.count == 0 {
            return Ok(());
        }
        Err(invalid(format!(
            "{} of {} files' names in `weight_map` are not plain relative paths: {}; expected names of files in \
             the index's folder or below it",
            wrong.count,
            self.shards.len(),
            wrong.names(),
        )))
    }

    fn sort_shards(&mut self) -> Result<()> {
        let mut order = allocate::collected(0..self.shards.len(), INDEX)?;
        order.sort_unstable_by(|&a, &b| {
            natural::compare(self.shards[a].as_bytes(), self.shards[b].as_bytes()).then(a.cmp(&b))
        });
        let mut place = allocate::filled(0, order.len(), INDEX)?;
        for (new, &old) in order.iter().enumerate() {
            place[old] = new as u32;
        }
        for entry in &mut self.entries {
            entry.shard = place[entry.shard as usize];
        }
        let sorted = order.iter().map(|&old| std::mem::take(&mut self.shards[old]));
        self.shards = allocate::collected(sorted, INDEX)?;
        Ok(())
    }
}

fn invalid(detail: impl Into<String>) -> Error {
    Error::Safetensors { path: PathBuf::new(), detail: detail.into() }
}

/// Returns the fault of a file's name in an index. Confinement does not depend on this check, because links can also
/// lead out of the folder. It gives a better message, and knows drive letters.
fn what_is_wrong(name: &str) -> Option<&'static str> {
    let has = |wrong: &str| name.split('/').any(|component| component == wrong);
    let has_drive = matches!(name.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    let rules = [
        (name.is_empty(), "empty"),
        (name.contains('\0'), "with a NUL character"),
        (name.contains('\\'), "with a backslash"),
        (name.starts_with('/'), "absolute"),
        (has_drive, "with a drive"),
        (has(".."), "leaves a folder by \"..\""),
        (has(".") || has(""), "with \".\" or an empty component"),
    ];
    rules.into_iter().find_map(|(is_broken, what)| is_broken.then_some(what))
}

/// The state while an index is read.
#[derive(Default)]
struct IndexReader {
    strictness: Strictness,
    index: Index,
    numbers: HashMap<String, u32>,
    /// The shard of the previous entry, because neighbours usually share it.
    last: u32,
    has_map: bool,
    has_metadata: bool,
    /// The error for valid JSON with wrong content.
    refusal: Option<Error>,
}

impl IndexReader {
    fn out_of_memory<E: de::Error>(&mut self, error: OutOfMemory) -> E {
        self.refusal = Some(error.into());
        E::custom(error)
    }

    /// Appends a name to the text, which has space for all names.
    fn append(&mut self, name: &str) -> (u32, u32) {
        let start = self.index.text.len();
        self.index.text.push_str(name);
        (start as u32, self.index.text.len() as u32)
    }

    /// Returns the number of a file, and assigns a new number to a new file.
    fn number_of<E: de::Error>(&mut self, file: &str) -> Result<u32, E> {
        let shards = &mut self.index.shards;
        if shards.get(self.last as usize).is_some_and(|last| last == file) {
            return Ok(self.last);
        }
        if let Some(&known) = self.numbers.get(file) {
            return Ok(known);
        }
        if shards.len() == MAX_SHARDS {
            let detail = format!("`weight_map` names more than {MAX_SHARDS} files; expected at most that");
            self.refusal = Some(invalid(detail));
            return Err(E::custom("too many files"));
        }
        let number = shards.len() as u32;
        if self.numbers.try_reserve(1).and(shards.try_reserve(1)).is_err() {
            let bytes = 2 * size_of_val(&**shards);
            return Err(self.out_of_memory(OutOfMemory { bytes, purpose: INDEX }));
        }
        self.numbers.insert(file.into(), number);
        shards.push(file.into());
        Ok(number)
    }
}

struct IndexVisitor<'r>(&'r mut IndexReader);

impl<'de> Visitor<'de> for IndexVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object with `weight_map`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        let strict = reader.strictness == Strictness::Strict;
        let read = |name: &str| match name {
            "weight_map" => IndexField::WeightMap,
            "metadata" => IndexField::Metadata,
            _ => IndexField::Unknown,
        };
        while let Some(field) = map.next_key_seed(Any(Word { what: "a field's name", read }))? {
            match field {
                IndexField::WeightMap => {
                    if std::mem::replace(&mut reader.has_map, true) && strict {
                        return Err(A::Error::duplicate_field("weight_map"));
                    }
                    let Index { mut text, metadata, .. } = std::mem::take(&mut reader.index);
                    text.clear();
                    reader.index = Index { text, metadata, ..Index::default() };
                    (reader.numbers, reader.last) = (HashMap::new(), 0);
                    map.next_value_seed(Any(WeightMapVisitor(reader)))?;
                }
                IndexField::Metadata => {
                    if std::mem::replace(&mut reader.has_metadata, true) && strict {
                        return Err(A::Error::duplicate_field("metadata"));
                    }
                    let value: Box<RawValue> = map.next_value()?;
                    reader.index.metadata = metadata(&value, reader.strictness)?;
                }
                IndexField::Unknown => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Checks the value of `metadata`. The binding reads it again, so it must be valid for any reader.
fn metadata<E: de::Error>(value: &RawValue, strictness: Strictness) -> Result<Option<String>, E> {
    let wrong = |error| E::custom(format_args!("invalid `metadata`: {error}"));
    Any(Discard).deserialize(&mut serde_json::Deserializer::from_str(value.get())).map_err(wrong)?;
    match value.get() {
        "null" => Ok(None),
        object if object.starts_with('{') => Ok(Some(object.into())),
        _ if strictness == Strictness::Upstream => Ok(None),
        _ => Err(E::custom("`metadata` is not an object")),
    }
}

enum IndexField {
    WeightMap,
    Metadata,
    Unknown,
}

struct WeightMapVisitor<'r>(&'r mut IndexReader);

impl<'de> Visitor<'de> for WeightMapVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("`weight_map` to be an object of files' names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        while let Some((start, end)) =
            map.next_key_seed(Any(Word { what: "a tensor's name", read: |name: &str| reader.append(name) }))?
        {
            let shard = map.next_value_seed(Any(ShardVisitor { reader, start, end }))?;
            let entry = IndexEntry { start, end, shard };
            allocate::push(&mut reader.index.entries, entry, INDEX)
                .map_err(|error| reader.out_of_memory(error))?;
            reader.last = shard;
        }
        Ok(())
    }
}

/// Numbers the file of a tensor, whose name is `start..end` of the text.
struct ShardVisitor<'r> {
    reader: &'r mut IndexReader,
    start: u32,
    end: u32,
}

impl Visitor<'_> for ShardVisitor<'_> {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let name = &self.reader.index.text[self.start as usize..self.end as usize];
        write!(f, "the name of the file of tensor {}", quoted(name))
    }

    fn visit_str<E: de::Error>(self, file: &str) -> Result<u32, E> {
        self.reader.number_of(file)
    }
}
