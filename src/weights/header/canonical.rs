//! The header as every writer that is known writes it: fields in one order, strings without escapes, plain numbers.
//! Read byte by byte, which takes a fraction of what a JSON parser does; all that is even slightly different is left
//! to [`super::json`], which also has the words for what is wrong.

use std::num::NonZeroU32;

use super::LENGTH_BYTES;
use super::table::{Pair, Record, Span, Table, Text};
use crate::dtype::Dtype;
use crate::weights::scan::Scanner;

/// About what an entry takes, for a first guess at how many there are.
const ENTRY_BYTES: usize = 100;

/// What [`super::json::parse`] would give, or `None`.
pub(super) fn parse(json: &str) -> Option<Table> {
    let entries = json.len() / ENTRY_BYTES;
    let mut table = Table {
        text: String::with_capacity(json.len() / 2),
        shapes: Vec::with_capacity(2 * entries),
        records: Vec::with_capacity(entries),
        ..Table::default()
    };
    let mut scanner = Scanner::new(json);
    scanner.expect(b'{')?;
    scanner.list(b'}', |scanner| pair(scanner, &mut table))?;
    scanner.end()?;
    Some(table)
}

fn pair(scanner: &mut Scanner<'_>, table: &mut Table) -> Option<()> {
    let name = text_into(scanner, &mut table.text)?;
    scanner.expect(b':')?;
    scanner.expect(b'{')?;
    if table.text(name.span) != "__metadata__" {
        let (dtype, shape, [begin, end]) = entry(scanner, &mut table.shapes)?;
        table.records.push(Record { name, shape, dtype, begin, end });
        return Some(());
    }
    let mut pairs = Vec::new();
    scanner.list(b'}', |scanner| {
        let key = text_into(scanner, &mut table.text)?;
        scanner.expect(b':')?;
        let value = text_into(scanner, &mut table.text)?.span;
        pairs.push(Pair { key, value });
        Some(())
    })?;
    table.metadata.replace(pairs).is_none().then_some(())
}

/// Appends a string to the table's text.
fn text_into(scanner: &mut Scanner<'_>, text: &mut String) -> Option<Text> {
    let string = scanner.string()?;
    let quote = (scanner.position() - string.len() - 2) as u64;
    let start = text.len();
    text.push_str(string);
    let place = NonZeroU32::new(u32::try_from(LENGTH_BYTES + quote).ok()?);
    Some(Text { span: Span::new(start, text.len()), place })
}

fn entry(scanner: &mut Scanner<'_>, shapes: &mut Vec<u64>) -> Option<(Dtype, Span, [u64; 2])> {
    scanner.field("\"dtype\"")?;
    let dtype = Dtype::from_name(scanner.string()?)?;
    scanner.expect(b',')?;
    scanner.field("\"shape\"")?;
    scanner.expect(b'[')?;
    let start = shapes.len();
    scanner.list(b']', |scanner| {
        shapes.push(scanner.number()?);
        Some(())
    })?;
    let shape = Span::new(start, shapes.len());
    scanner.expect(b',')?;
    scanner.field("\"data_offsets\"")?;
    scanner.expect(b'[')?;
    let begin = scanner.number()?;
    scanner.expect(b',')?;
    let end = scanner.number()?;
    scanner.expect(b']')?;
    scanner.expect(b'}')?;
    Some((dtype, shape, [begin, end]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::weights::header::{Strictness, json};
    use crate::weights::scan::tests::edited;

    fn header() -> impl Strategy<Value = String> {
        let numbers = || prop::collection::vec(prop_oneof![0..9_u64, any::<u64>()], 0..4);
        let dtype = prop::sample::select(Dtype::ALL.to_vec());
        let entry = ("[a-z.0-9\u{e9}]{0,12}", dtype, numbers(), any::<u32>(), any::<u64>());
        let pair = ("[a-z ]{0,6}", "[a-z/0-9]{0,9}");
        let metadata = prop::collection::vec(prop::collection::vec(pair, 0..3), 0..3);
        (prop::collection::vec(entry, 0..5), metadata, "[ \n]{0,3}").prop_map(|(entries, metadata, end)| {
            let mut parts: Vec<String> = entries
                .iter()
                .map(|(name, dtype, shape, begin, end)| {
                    format!(
                        r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
                    )
                })
                .collect();
            for pairs in metadata {
                let pairs: Vec<_> =
                    pairs.iter().map(|(key, value)| format!(r#""{key}":"{value}""#)).collect();
                parts.insert(0, format!(r#""__metadata__":{{{}}}"#, pairs.join(",")));
            }
            format!("{{{}}}{end}", parts.join(","))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

        /// It may leave a header to the parser, and must not read one that the parser reads otherwise.
        #[test]
        fn what_is_read_is_what_the_parser_reads(text in header().prop_flat_map(edited)) {
            if let Some(table) = parse(&text) {
                for strictness in [Strictness::Strict, Strictness::Upstream] {
                    let expected = json::parse(&text, strictness).ok();
                    prop_assert_eq!(Some(&table), expected.as_ref(), "{}", text);
                }
            }
        }
    }

    #[test]
    fn what_upstream_writes_is_read() {
        let data = [0_u8; 24];
        let tensor = |shape| safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &data);
        let tensors = [("a.weight", tensor(vec![2, 3])), ("b", tensor(vec![6]))];
        let tensors = tensors.map(|(name, tensor)| (name, tensor.expect("a tensor")));
        let metadata = Some(std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]));
        let file = safetensors::serialize(tensors, metadata).expect("written");
        let json = std::str::from_utf8(&file[8..file.len() - 48]).expect("text");
        let table = parse(json).expect("canonical");
        assert_eq!(table.records.len(), 2);
        assert_eq!(table.metadata.map(|pairs| pairs.len()), Some(1));
        assert_eq!(table.shapes, [2, 3, 6]);
        // With the spaces of Python's json.dumps, too.
        assert!(parse(&json.replace(':', ": ").replace(',', ", ")).is_some());
    }
}
