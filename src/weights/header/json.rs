//! The header's JSON, read in one pass into a [`Table`].
//!
//! Upstream lets serde derive this, with `#[serde(flatten)]`: each entry is first buffered as a tree
//! and then read from there. What follows from that for odd files is kept: a value that nobody asked
//! for must still be valid in full, with numbers in range and nesting within the limit.
//! Source: <https://github.com/huggingface/safetensors>, `tensor.rs`, `HashMetadata`.

use std::fmt;
use std::num::NonZeroU32;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::entry::EntryVisitor;
use super::error::{HeaderError, HeaderErrorKind, quoted};
use super::table::{Pair, Record, Span, Table, Text};
use super::{LENGTH_BYTES, Strictness};

/// More unknown fields than this are only counted.
const MAX_WARNINGS: usize = 16;

pub(super) fn parse(json: &str, strictness: Strictness) -> Result<Table, HeaderError> {
    let mut reader = Reader::new(json, strictness);
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let result = Any(RootVisitor(&mut reader)).deserialize(&mut deserializer);
    match result.and_then(|()| deserializer.end()) {
        Ok(()) => Ok(reader.finish()),
        Err(error) => Err(reader.error(&error)),
    }
}

/// What the visitors share: the table that they fill, and what an error message needs.
pub(super) struct Reader<'j> {
    json: &'j str,
    pub strictness: Strictness,
    pub table: Table,
    /// The tensor whose entry is being read.
    current: Option<Span>,
    /// The kind of the error that a visitor raised; serde's errors only carry text.
    refusal: Option<HeaderErrorKind>,
    uncounted_warnings: usize,
}

impl<'j> Reader<'j> {
    fn new(json: &'j str, strictness: Strictness) -> Self {
        Self {
            json,
            strictness,
            table: Table::default(),
            current: None,
            refusal: None,
            uncounted_warnings: 0,
        }
    }

    pub fn refuse<E: Error>(&mut self, kind: HeaderErrorKind, text: impl fmt::Display) -> E {
        self.refusal = Some(kind);
        E::custom(text)
    }

    pub fn duplicate<E: Error>(&mut self, field: &str) -> E {
        self.refuse(HeaderErrorKind::Duplicate, format_args!("duplicate field `{field}`"))
    }

    pub fn warn_unknown_field(&mut self, field: &str) {
        if self.table.warnings.len() >= MAX_WARNINGS {
            self.uncounted_warnings += 1;
            return;
        }
        let tensor = self.current_tensor();
        self.table.warnings.push(format!("{tensor}unknown field {} is ignored", quoted(field)));
    }

    fn current_tensor(&self) -> String {
        let name = self.current.map(|span| quoted(self.table.text(span)));
        name.map_or_else(String::new, |name| format!("tensor {name}: "))
    }

    fn append(&mut self, value: &str, place: Option<NonZeroU32>) -> Text {
        let start = self.table.text.len();
        self.table.text.push_str(value);
        Text { span: Span::new(start, self.table.text.len()), place }
    }

    /// The place in the file of the quote that opens `value`, which must lie inside the JSON.
    fn place(&self, value: &str) -> Option<NonZeroU32> {
        let in_json = value.as_ptr().addr().checked_sub(self.json.as_ptr().addr())?;
        let in_file = LENGTH_BYTES.checked_add(in_json as u64)?.checked_sub(1)?;
        NonZeroU32::new(u32::try_from(in_file).ok()?)
    }

    fn finish(mut self) -> Table {
        if self.uncounted_warnings > 0 {
            self.table.warnings.push(format!("{} more unknown fields are ignored", self.uncounted_warnings));
        }
        self.table
    }

    fn error(&self, error: &serde_json::Error) -> HeaderError {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let text = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
        let tensor = self.current_tensor();
        let offset = LENGTH_BYTES + byte_position(self.json, line, column) as u64;
        match self.refusal {
            Some(kind) => HeaderError::new(kind, Some(offset), format!("{tensor}{text}")),
            None => HeaderError::new(
                HeaderErrorKind::InvalidJson,
                Some(offset),
                format!("invalid JSON in header: {tensor}{text}"),
            ),
        }
    }
}

/// `serde_json` counts lines from 1 and gives as column the number of bytes read of the line.
fn byte_position(json: &str, line: usize, column: usize) -> usize {
    let line_start = match line.checked_sub(2) {
        Some(lines_before) => json.match_indices('\n').nth(lines_before).map_or(0, |(at, _)| at + 1),
        None => 0,
    };
    (line_start + column).saturating_sub(1)
}

/// Reads a value of whatever JSON type with a visitor, which refuses those that it does not know.
pub(super) struct Any<V>(pub V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Any<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        deserializer.deserialize_any(self.0)
    }
}

struct RootVisitor<'r, 'j>(&'r mut Reader<'j>);

impl<'de> Visitor<'de> for RootVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        let mut has_metadata = false;
        while let Some(name) = map.next_key_seed(Any(TextVisitor(reader)))? {
            if reader.table.text(name.span) == "__metadata__" {
                if std::mem::replace(&mut has_metadata, true) {
                    return Err(reader.duplicate("__metadata__"));
                }
                reader.table.metadata = map.next_value_seed(Any(MetadataVisitor(reader)))?;
            } else {
                let record = entry(reader, name, &mut map)?;
                reader.table.records.push(record);
            }
        }
        Ok(())
    }
}

fn entry<'de, A: MapAccess<'de>>(reader: &mut Reader, name: Text, map: &mut A) -> Result<Record, A::Error> {
    reader.current = Some(name.span);
    // JSON has it by an escape alone, and of names with escapes the place is not known.
    let may_have_nul = reader.strictness == Strictness::Strict && name.place.is_none();
    if may_have_nul && reader.table.text(name.span).contains('\0') {
        return Err(reader.refuse(HeaderErrorKind::InvalidName, "the name has a NUL character"));
    }
    let entry = map.next_value_seed(Any(EntryVisitor(reader)))?;
    reader.current = None;
    Ok(Record { name, shape: entry.shape, dtype: entry.dtype, begin: entry.begin, end: entry.end })
}

struct MetadataVisitor<'r, 'j>(&'r mut Reader<'j>);

impl<'de> Visitor<'de> for MetadataVisitor<'_, '_> {
    type Value = Option<Vec<Pair>>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("`__metadata__` to be an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let reader = self.0;
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key_seed(Any(TextVisitor(reader)))? {
            let value = map.next_value_seed(Any(TextVisitor(reader)))?;
            pairs.push(Pair { key, value: value.span });
        }
        pairs.shrink_to_fit();
        Ok(Some(pairs))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        match self.0.strictness {
            Strictness::Strict => Err(E::invalid_type(serde::de::Unexpected::Unit, &self)),
            Strictness::Upstream => Ok(None),
        }
    }
}

/// Appends a string to the table's text.
struct TextVisitor<'r, 'j>(&'r mut Reader<'j>);

impl<'de> Visitor<'de> for TextVisitor<'_, '_> {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Text, E> {
        let place = self.0.place(value);
        Ok(self.0.append(value, place))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Text, E> {
        Ok(self.0.append(value, None))
    }
}
