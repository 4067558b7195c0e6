//! The index's JSON: twice, as programs write it, and any.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{Entry, Index};
use crate::weights::header::{Strictness, quoted};
use crate::weights::scan::Scanner;

/// Names in the order of the JSON. The error says what is wrong, without a path.
pub(super) fn parse(json: &str, strictness: Strictness) -> Result<Index, String> {
    canonical(json).map_or_else(|| any(json, strictness), Ok)
}

/// The index as all writers that are known write it, in a fraction of the time that a JSON parser takes.
fn canonical(json: &str) -> Option<Index> {
    let mut map = Map::default();
    let mut scanner = Scanner::new(json);
    let mut metadata = None;
    let mut has_map = false;
    scanner.expect(b'{')?;
    scanner.list(b'}', |scanner| match scanner.string()? {
        "metadata" if metadata.is_none() => {
            scanner.expect(b':')?;
            metadata = Some(flat_object(scanner)?.to_owned());
            Some(())
        }
        "weight_map" if !std::mem::replace(&mut has_map, true) => {
            scanner.expect(b':')?;
            scanner.expect(b'{')?;
            scanner.list(b'}', |scanner| {
                let name = scanner.string()?;
                scanner.expect(b':')?;
                let (start, end) = map.append(name)?;
                map.add_place(start, end, scanner.string()?);
                Some(())
            })
        }
        _ => None,
    })?;
    scanner.end()?;
    has_map.then_some(Index { metadata, ..map.index })
}

/// An object whose values are strings and whole numbers, as it is written.
fn flat_object<'j>(scanner: &mut Scanner<'j>) -> Option<&'j str> {
    scanner.expect(b'{')?;
    let start = scanner.position() - 1;
    scanner.list(b'}', |scanner| {
        scanner.string()?;
        scanner.expect(b':')?;
        if scanner.number().is_none() {
            scanner.string()?;
        }
        Some(())
    })?;
    Some(scanner.since(start))
}

/// Any JSON.
fn any(json: &str, strictness: Strictness) -> Result<Index, String> {
    let mut reader = Reader { strictness, map: Map::default(), metadata: None };
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let read = deserializer.deserialize_map(RootVisitor(&mut reader));
    let whole = read.and_then(|found| deserializer.end().map(|()| found));
    let has_map = whole.map_err(|error| format!("invalid JSON: {error}"))?;
    if !has_map {
        return Err("no `weight_map`: expected an object that names each tensor's file".into());
    }
    Ok(Index { metadata: reader.metadata, ..reader.map.index })
}

/// A `weight_map` as it is read.
#[derive(Default)]
struct Map {
    index: Index,
    shards: HashMap<String, u32>,
    /// Neighbours are in the same file, mostly.
    last: u32,
}

impl Map {
    /// `None` if there are more names than 32 bits can tell.
    fn append(&mut self, name: &str) -> Option<(u32, u32)> {
        let start = u32::try_from(self.index.text.len()).ok()?;
        self.index.text.push_str(name);
        Some((start, u32::try_from(self.index.text.len()).ok()?))
    }

    fn add_place(&mut self, start: u32, end: u32, file: &str) {
        let shard = self.number_of(file);
        self.index.entries.push(Entry { start, end, shard });
        self.last = shard;
    }

    /// The number of a file, a new one if it was not named before.
    fn number_of(&mut self, file: &str) -> u32 {
        let shards = &mut self.index.shards;
        if shards.get(self.last as usize).is_some_and(|last| last == file) {
            return self.last;
        }
        if let Some(&known) = self.shards.get(file) {
            return known;
        }
        let number = shards.len() as u32;
        self.shards.insert(file.into(), number);
        shards.push(file.into());
        number
    }
}

struct Reader {
    strictness: Strictness,
    map: Map,
    metadata: Option<String>,
}

struct RootVisitor<'r>(&'r mut Reader);

impl<'de> Visitor<'de> for RootVisitor<'_> {
    /// Whether there was a `weight_map`.
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object with `weight_map`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let reader = self.0;
        let strict = reader.strictness == Strictness::Strict;
        let (mut has_map, mut has_metadata) = (false, false);
        while let Some(field) = map.next_key_seed(FieldSeed)? {
            match field {
                Field::WeightMap => {
                    if std::mem::replace(&mut has_map, true) {
                        if strict {
                            return Err(A::Error::duplicate_field("weight_map"));
                        }
                        reader.map = Map::default();
                    }
                    map.next_value_seed(WeightMap(&mut reader.map))?;
                }
                Field::Metadata => {
                    if std::mem::replace(&mut has_metadata, true) && strict {
                        return Err(A::Error::duplicate_field("metadata"));
                    }
                    let value: Box<RawValue> = map.next_value()?;
                    reader.metadata = match value.get() {
                        "null" => None,
                        object if object.starts_with('{') => Some(object.into()),
                        _ if !strict => None,
                        _ => return Err(A::Error::custom("`metadata` is not an object")),
                    };
                }
                Field::Unknown => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(has_map)
    }
}

enum Field {
    WeightMap,
    Metadata,
    Unknown,
}

struct FieldSeed;

impl<'de> DeserializeSeed<'de> for FieldSeed {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Field, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldSeed {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Field, E> {
        Ok(match name {
            "weight_map" => Field::WeightMap,
            "metadata" => Field::Metadata,
            _ => Field::Unknown,
        })
    }
}

struct WeightMap<'r>(&'r mut Map);

impl<'de> DeserializeSeed<'de> for WeightMap<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("`weight_map` to be an object of files' names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(place) = map.next_key_seed(NameSeed(self.0))? {
            map.next_value_seed(ShardSeed { map: self.0, place })?;
        }
        Ok(())
    }
}

/// Appends a name to the text.
struct NameSeed<'r>(&'r mut Map);

impl<'de> DeserializeSeed<'de> for NameSeed<'_> {
    type Value = (u32, u32);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(u32, u32), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NameSeed<'_> {
    type Value = (u32, u32);

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a tensor's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<(u32, u32), E> {
        self.0.append(name).ok_or_else(|| E::custom("more than 4 GiB of names"))
    }
}

/// Adds the file of the name that was read last.
struct ShardSeed<'r> {
    map: &'r mut Map,
    place: (u32, u32),
}

impl<'de> DeserializeSeed<'de> for ShardSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for ShardSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (start, end) = self.place;
        let name = &self.map.index.text[start as usize..end as usize];
        write!(f, "the name of the file of tensor {}", quoted(name))
    }

    fn visit_str<E: Error>(self, file: &str) -> Result<(), E> {
        let (start, end) = self.place;
        self.map.add_place(start, end, file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::canonical;
    use crate::weights::header::Strictness;
    use crate::weights::scan::tests::edited;

    fn index() -> impl Strategy<Value = String> {
        let pair = ("[a-z.0-9\u{e9}]{0,12}", "[ab]{1,2}[.]safetensors");
        let metadata = prop::sample::select(vec![
            r#"{"total_size": 17}"#,
            r#"{"total_size": 1.5, "a": null}"#,
            r#"{"a": {"b": []}}"#,
            "{}",
            "null",
        ]);
        let field = (any::<bool>(), prop::collection::vec(pair, 0..6), metadata);
        let field = field.prop_map(|(is_map, pairs, metadata)| {
            if !is_map {
                return format!("  \"metadata\": {metadata}");
            }
            let pairs: Vec<_> =
                pairs.iter().map(|(name, file)| format!("    \"{name}\": \"{file}\"")).collect();
            format!("  \"weight_map\": {{\n{}\n  }}", pairs.join(",\n"))
        });
        prop::collection::vec(field, 1..4).prop_map(|fields| format!("{{\n{}\n}}\n", fields.join(",\n")))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

        /// It may leave an index to the parser, and must not read one that the parser reads otherwise.
        #[test]
        fn what_is_read_is_what_the_parser_reads(text in index().prop_flat_map(edited)) {
            if let Some(found) = canonical(&text) {
                for strictness in [Strictness::Strict, Strictness::Upstream] {
                    let expected = super::any(&text, strictness);
                    prop_assert_eq!(Ok(&found), expected.as_ref(), "{}", text);
                }
            }
        }
    }

    #[test]
    fn what_transformers_writes_is_read() {
        let text = "{\n  \"metadata\": {\n    \"total_parameters\": 5,\n    \"total_size\": 20\n  },\n  \
                    \"weight_map\": {\n    \"a\": \"model-1.safetensors\",\n    \"b\": \"model-2.safetensors\"\n  }\n}\n";
        let found = canonical(text).expect("canonical");
        assert_eq!(found.shards(), ["model-1.safetensors", "model-2.safetensors"]);
        assert_eq!(found.metadata(), Some("{\n    \"total_parameters\": 5,\n    \"total_size\": 20\n  }"));
        assert_eq!(found.names().collect::<Vec<_>>(), [("a", 0), ("b", 1)]);
    }
}
