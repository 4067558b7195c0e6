//! One tensor's entry: `{"dtype": ..., "shape": [...], "data_offsets": [begin, end]}`.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};

use super::Strictness;
use super::error::{HeaderErrorKind, quoted};
use super::json::{Any, Reader};
use super::table::Span;
use crate::dtype::Dtype;

pub(super) struct Entry {
    pub dtype: Dtype,
    pub shape: Span,
    pub begin: u64,
    pub end: u64,
}

pub(super) struct EntryVisitor<'r, 'j>(pub &'r mut Reader<'j>);

impl<'de> Visitor<'de> for EntryVisitor<'_, '_> {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object with `dtype`, `shape` and `data_offsets`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let reader = self.0;
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key_seed(Any(FieldVisitor(reader)))? {
            match field {
                Field::Dtype if dtype.is_some() => return Err(reader.duplicate("dtype")),
                Field::Shape if shape.is_some() => return Err(reader.duplicate("shape")),
                Field::DataOffsets if offsets.is_some() => return Err(reader.duplicate("data_offsets")),
                Field::Dtype => dtype = Some(map.next_value_seed(Any(DtypeVisitor(reader)))?),
                Field::Shape => shape = Some(map.next_value_seed(Any(ShapeVisitor(reader)))?),
                Field::DataOffsets => offsets = Some(map.next_value_seed(Any(OffsetsVisitor))?),
                Field::Unknown => map.next_value_seed(Any(Discard))?,
            }
        }
        let dtype = dtype.ok_or_else(|| A::Error::missing_field("dtype"))?;
        let shape = shape.ok_or_else(|| A::Error::missing_field("shape"))?;
        let (begin, end) = offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?;
        Ok(Entry { dtype, shape, begin, end })
    }

    /// serde's derived code, which upstream uses, also takes the fields' values as an array.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Entry, A::Error> {
        if self.0.strictness == Strictness::Strict {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        let missing = |count| A::Error::invalid_length(count, &"an array of 3");
        let dtype = seq.next_element_seed(Any(DtypeVisitor(self.0)))?.ok_or_else(|| missing(0))?;
        let shape = seq.next_element_seed(Any(ShapeVisitor(self.0)))?.ok_or_else(|| missing(1))?;
        let (begin, end) = seq.next_element_seed(Any(OffsetsVisitor))?.ok_or_else(|| missing(2))?;
        Ok(Entry { dtype, shape, begin, end })
    }
}

enum Field {
    Dtype,
    Shape,
    DataOffsets,
    Unknown,
}

struct FieldVisitor<'r, 'j>(&'r mut Reader<'j>);

impl Visitor<'_> for FieldVisitor<'_, '_> {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Field, E> {
        Ok(match name {
            "dtype" => Field::Dtype,
            "shape" => Field::Shape,
            "data_offsets" => Field::DataOffsets,
            unknown => {
                self.0.warn_unknown_field(unknown);
                Field::Unknown
            }
        })
    }
}

struct DtypeVisitor<'r, 'j>(&'r mut Reader<'j>);

impl<'de> Visitor<'de> for DtypeVisitor<'_, '_> {
    type Value = Dtype;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("the name of an element type")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Dtype, E> {
        Dtype::from_name(name)
            .ok_or_else(|| self.0.refuse(HeaderErrorKind::UnknownDtype, unknown_dtype(name)))
    }

    /// serde's derived code, which upstream uses, also takes an enum as `{"U8": null}`.
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

/// Not `collect` and `join`, which LLVM unrolls over the constant names and then optimizes for minutes.
#[cold]
fn unknown_dtype(name: &str) -> String {
    let mut text = format!("unknown variant {} as dtype, expected one of", quoted(name));
    for dtype in Dtype::ALL {
        text.push(' ');
        text.push_str(dtype.name());
    }
    text
}

struct ShapeVisitor<'r, 'j>(&'r mut Reader<'j>);

impl<'de> Visitor<'de> for ShapeVisitor<'_, '_> {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Span, A::Error> {
        let shapes = &mut self.0.table.shapes;
        let start = shapes.len();
        while let Some(dimension) = seq.next_element()? {
            shapes.push(dimension);
        }
        Ok(Span::new(start, shapes.len()))
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

/// Reads a value and forgets it. Unlike `serde::de::IgnoredAny` it looks at every number, string and
/// depth, as upstream does.
struct Discard;

impl<'de> Visitor<'de> for Discard {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Any(Discard))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry_seed(Any(Discard), Any(Discard))?.is_some() {}
        Ok(())
    }
}
