//! Reads the header's JSON in one pass into a [`HeaderTable`].
//!
//! serde derives upstream's reader with `#[serde(flatten)]`: it buffers each entry as a tree and reads the tree. This
//! reader judges odd files in the same way: the value of an unknown field must be valid in full, with numbers in range
//! and nesting within the limit. Source: <https://github.com/huggingface/safetensors>, `tensor.rs`, `HashMetadata`.

use std::fmt;
use std::num::NonZeroU32;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Unexpected, Visitor};

use super::error::{HeaderError, HeaderErrorKind, quoted};
use super::prefix::LENGTH_BYTES;
use super::table::{HEADER, HeaderTable, Pair, Record, Span, Text};
use crate::allocate;
use crate::dtype::Dtype;
use crate::weights::json::{Any, Discard, Word};
use crate::weights::strictness::Strictness;

/// Unknown fields beyond this number are only counted.
const MAX_WARNINGS: usize = 16;

pub(super) fn parse(json: &str, strictness: Strictness) -> Result<HeaderTable, HeaderError> {
    let table = HeaderTable::with_capacity(json.len())?;
    let mut reader =
        HeaderReader { json, strictness, table, current: None, refusal: None, uncounted_warnings: 0 };
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let result = Any(HeaderVisitor(&mut reader)).deserialize(&mut deserializer);
    result.and_then(|()| deserializer.end()).map_err(|error| reader.error(&error))?;
    if reader.uncounted_warnings > 0 {
        let more = format!("{} more unknown fields are ignored", reader.uncounted_warnings);
        reader.table.warnings.push(more);
    }
    Ok(reader.table)
}

/// State shared by the visitors: the table that they fill, and the facts for an error message.
struct HeaderReader<'j> {
    json: &'j str,
    strictness: Strictness,
    table: HeaderTable,
    /// The tensor whose entry is being read.
    current: Option<Span>,
    /// The kind of the error that a visitor raised, because serde's errors carry only text.
    refusal: Option<HeaderErrorKind>,
    uncounted_warnings: usize,
}

impl HeaderReader<'_> {
    fn refuse<E: Error>(&mut self, kind: HeaderErrorKind, text: impl fmt::Display) -> E {
        self.refusal = Some(kind);
        E::custom(text)
    }

    /// Appends to a list of the header.
    fn push<T, E: Error>(&mut self, list: fn(&mut HeaderTable) -> &mut Vec<T>, item: T) -> Result<(), E> {
        allocate::push(list(&mut self.table), item, HEADER)
            .map_err(|error| self.refuse(HeaderErrorKind::NoMemory(error), error))
    }

    fn duplicate<E: Error>(&mut self, field: &str) -> E {
        self.refuse(HeaderErrorKind::Duplicate, format_args!("duplicate field `{field}`"))
    }

    fn warn_unknown_field(&mut self, field: &str) {
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
        // The text has space for all strings of the header.
        self.table.text.push_str(value);
        Text { span: Span::new(start, self.table.text.len()), place }
    }

    /// Returns the position in the file of the quote that opens `value`, which must lie inside the JSON.
    fn place(&self, value: &str) -> Option<NonZeroU32> {
        let in_json = value.as_ptr().addr().checked_sub(self.json.as_ptr().addr())?;
        let in_file = LENGTH_BYTES.checked_add(in_json as u64)?.checked_sub(1)?;
        NonZeroU32::new(u32::try_from(in_file).ok()?)
    }

    fn error(&self, error: &serde_json::Error) -> HeaderError {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let text = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
        let tensor = self.current_tensor();
        let offset = LENGTH_BYTES + byte_position(self.json, line, column) as u64;
        let (kind, what) = match self.refusal {
            Some(kind) => (kind, ""),
            None => (HeaderErrorKind::InvalidJson, "invalid JSON in header: "),
        };
        HeaderError::new(kind, Some(offset), format!("{what}{tensor}{text}"))
    }
}

/// Returns the byte at a line and column: `serde_json` counts lines from 1, and bytes of the line as columns.
fn byte_position(json: &str, line: usize, column: usize) -> usize {
    let line_start = match line.checked_sub(2) {
        Some(lines_before) => json.match_indices('\n').nth(lines_before).map_or(0, |(at, _)| at + 1),
        None => 0,
    };
    (line_start + column).saturating_sub(1)
}

struct HeaderVisitor<'r, 'j>(&'r mut HeaderReader<'j>);

impl<'de> Visitor<'de> for HeaderVisitor<'_, '_> {
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
                entry(reader, name, &mut map)?;
            }
        }
        Ok(())
    }
}

/// Reads the entry of a name, and appends it to the table.
fn entry<'de, A: MapAccess<'de>>(reader: &mut HeaderReader, name: Text, map: &mut A) -> Result<(), A::Error> {
    reader.current = Some(name.span);
    // Only an escape can write NUL, and names with escapes have no position in the file.
    let may_have_nul = reader.strictness == Strictness::Strict && name.place.is_none();
    if may_have_nul && reader.table.text(name.span).contains('\0') {
        return Err(reader.refuse(HeaderErrorKind::InvalidName, "the name has a NUL character"));
    }
    map.next_value_seed(Any(EntryVisitor { reader, name }))?;
    reader.current = None;
    Ok(())
}

struct MetadataVisitor<'r, 'j>(&'r mut HeaderReader<'j>);

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
            allocate::push(&mut pairs, Pair { key, value: value.span }, HEADER)
                .map_err(|error| reader.refuse(HeaderErrorKind::NoMemory(error), error))?;
        }
        pairs.shrink_to_fit();
        Ok(Some(pairs))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        match self.0.strictness {
            Strictness::Strict => Err(E::invalid_type(Unexpected::Unit, &self)),
            Strictness::Upstream => Ok(None),
        }
    }
}

/// Appends a string to the table's text.
struct TextVisitor<'r, 'j>(&'r mut HeaderReader<'j>);

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

/// Appends one tensor's entry to the table: `{"dtype": ..., "shape": [...], "data_offsets": [begin, end]}`.
struct EntryVisitor<'r, 'j> {
    reader: &'r mut HeaderReader<'j>,
    name: Text,
}

impl<'de> Visitor<'de> for EntryVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object with `dtype`, `shape` and `data_offsets`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.reader;
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key_seed(Any(entry_field(reader)))? {
            match field {
                EntryField::Dtype if dtype.is_some() => return Err(reader.duplicate("dtype")),
                EntryField::Shape if shape.is_some() => return Err(reader.duplicate("shape")),
                EntryField::DataOffsets if offsets.is_some() => return Err(reader.duplicate("data_offsets")),
                EntryField::Dtype => dtype = Some(map.next_value_seed(Any(DtypeVisitor(reader)))?),
                EntryField::Shape => shape = Some(map.next_value_seed(Any(ShapeVisitor(reader)))?),
                EntryField::DataOffsets => offsets = Some(map.next_value_seed(Any(OffsetsVisitor))?),
                EntryField::Unknown => map.next_value_seed(Any(Discard))?,
            }
        }
        let dtype = dtype.ok_or_else(|| A::Error::missing_field("dtype"))?;
        let shape = shape.ok_or_else(|| A::Error::missing_field("shape"))?;
        let (begin, end) = offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?;
        reader.push(|table| &mut table.records, Record { name: self.name, shape, dtype, begin, end })
    }

    /// serde's derived code, which upstream uses, also accepts the fields' values as an array.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        if self.reader.strictness == Strictness::Strict {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        let missing = |count| A::Error::invalid_length(count, &"an array of 3");
        let dtype = seq.next_element_seed(Any(DtypeVisitor(self.reader)))?.ok_or_else(|| missing(0))?;
        let shape = seq.next_element_seed(Any(ShapeVisitor(self.reader)))?.ok_or_else(|| missing(1))?;
        let (begin, end) = seq.next_element_seed(Any(OffsetsVisitor))?.ok_or_else(|| missing(2))?;
        self.reader.push(|table| &mut table.records, Record { name: self.name, shape, dtype, begin, end })
    }
}

enum EntryField {
    Dtype,
    Shape,
    DataOffsets,
    Unknown,
}

fn entry_field(reader: &mut HeaderReader<'_>) -> Word<impl FnOnce(&str) -> EntryField> {
    let read = |name: &str| match name {
        "dtype" => EntryField::Dtype,
        "shape" => EntryField::Shape,
        "data_offsets" => EntryField::DataOffsets,
        unknown => {
            reader.warn_unknown_field(unknown);
            EntryField::Unknown
        }
    };
    Word { what: "a field's name", read }
}

struct DtypeVisitor<'r, 'j>(&'r mut HeaderReader<'j>);

impl<'de> Visitor<'de> for DtypeVisitor<'_, '_> {
    type Value = Dtype;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("the name of an element type")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Dtype, E> {
        Dtype::from_name(name)
            .ok_or_else(|| self.0.refuse(HeaderErrorKind::UnknownDtype, unknown_dtype(name)))
    }

    /// serde's derived code, which upstream uses, also accepts an enum as `{"U8": null}`.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Dtype, A::Error> {
        if self.0.strictness == Strictness::Strict {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        }
        let dtype = map.next_key_seed(Any(DtypeVisitor(self.0)))?;
        let dtype = dtype.ok_or_else(|| A::Error::invalid_length(0, &"one key"))?;
        map.next_value::<()>()?;
        if map.next_key_seed(Any(Discard))?.is_some() {
            return Err(A::Error::invalid_length(2, &"one key"));
        }
        Ok(dtype)
    }
}

/// Returns the message for an unknown element type. It avoids `collect` and `join`: LLVM would unroll those over the
/// constant names and then optimize for minutes.
#[cold]
fn unknown_dtype(name: &str) -> String {
    let mut text = format!("unknown variant {} as dtype, expected one of", quoted(name));
    for dtype in Dtype::ALL {
        text.push(' ');
        text.push_str(dtype.name());
    }
    text
}

struct ShapeVisitor<'r, 'j>(&'r mut HeaderReader<'j>);

impl<'de> Visitor<'de> for ShapeVisitor<'_, '_> {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Span, A::Error> {
        let start = self.0.table.shapes.len();
        while let Some(dimension) = seq.next_element()? {
            self.0.push(|table| &mut table.shapes, dimension)?;
        }
        Ok(Span::new(start, self.0.table.shapes.len()))
    }
}

struct OffsetsVisitor;

impl<'de> Visitor<'de> for OffsetsVisitor {
    type Value = (u64, u64);

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of 2 data offsets")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(u64, u64), A::Error> {
        let begin = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
        let end = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(1, &self))?;
        match seq.next_element_seed(Any(Discard))? {
            Some(()) => Err(A::Error::invalid_length(3, &self)),
            None => Ok((begin, end)),
        }
    }
}
