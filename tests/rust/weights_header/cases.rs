//! Each kind of unusual file, and the verdicts of this reader and of the incumbent.

use super::{Strictness, entry, file, object, parse};
use pagestream::internals::HeaderErrorKind::{self, *};

/// `None` means accepted.
type Outcome = Option<HeaderErrorKind>;

struct Case {
    row: u32,
    file: Vec<u8>,
    strict: Outcome,
    upstream: Outcome,
}

/// Numbers the rows in the order of the project's facts about the format.
#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn add(&mut self, row: u32, file: Vec<u8>, strict: Outcome, upstream: Outcome) {
        self.0.push(Case { row, file, strict, upstream });
    }

    fn accepted(&mut self, row: u32, json: impl AsRef<[u8]>, data: usize) {
        self.add(row, file(json, data), None, None);
    }

    fn refused(&mut self, row: u32, kind: HeaderErrorKind, json: impl AsRef<[u8]>, data: usize) {
        self.add(row, file(json, data), Some(kind), Some(kind));
    }

    fn refused_if_strict(&mut self, row: u32, kind: HeaderErrorKind, json: impl AsRef<[u8]>, data: usize) {
        self.add(row, file(json, data), Some(kind), None);
    }
}

/// Returns a header with one tensor `a`.
fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    object(&[entry("a", dtype, shape, offsets)])
}

/// Returns a header with one tensor of one byte and additional fields.
fn with_fields(fields: &str) -> String {
    format!(r#"{{"a":{{"dtype":"U8",{fields},"shape":[1],"data_offsets":[0,1]}}}}"#)
}

fn bytes(offsets: &[(&str, u64, u64)]) -> String {
    let tensor = |&(name, begin, end): &(&str, u64, u64)| {
        entry(name, "U8", &format!("[{}]", end.saturating_sub(begin)), &format!("[{begin},{end}]"))
    };
    object(&offsets.iter().map(tensor).collect::<Vec<_>>())
}

fn lengths_and_text(c: &mut Cases) {
    for size in [0, 7] {
        c.add(1, vec![0; size], Some(TooSmall), Some(TooSmall));
    }
    c.refused(2, InvalidJson, "", 0);
    for (length, kind) in [
        (3, InvalidLength),
        (100_000_000, InvalidLength),
        (100_000_001, TooLarge),
        (1 << 63, TooLarge),
        (u64::MAX, TooLarge),
    ] {
        let file = [&u64::to_le_bytes(length)[..], b"{}"].concat();
        c.add(if kind == TooLarge { 4 } else { 3 }, file, Some(kind), Some(kind));
    }
    c.refused(5, InvalidUtf8, b"{\"\xff\":1}", 0);
    c.refused(5, InvalidUtf8, b"{}\xc3", 0);
    c.refused(5, InvalidJson, "\u{feff}{}", 0);
    for json in ["x", "[]", "null", "\"a\"", "1", "true", "{", "{\"a\"", "{\"a\":}"] {
        c.refused(6, InvalidJson, json, 0);
    }
    c.accepted(30, " \t\r\n{}", 0);
    for padding in [" ", "\t", "\r", "\n", "      "] {
        c.accepted(31, format!("{{}}{padding}"), 0);
    }
    for tail in ["\0", "x", "{}", " {}", ","] {
        c.refused(32, InvalidJson, format!("{{}}{tail}"), 0);
    }
    for json in ["{/**/}", "{} // x", r#"{"__metadata__":{},}"#, "{\"__metadata__\":{\"a\":\"\n\"}}"] {
        c.refused(33, InvalidJson, json, 0);
    }
    c.refused(33, InvalidJson, r#"{"__metadata__":{"a":"\ud800"}}"#, 0);
    c.refused(33, InvalidJson, object(&[entry(r"\udc00", "U8", "[1]", "[0,1]")]), 1);
    c.refused(33, InvalidJson, one("U8", "[1,]", "[0,1]"), 1);
}

fn metadata(c: &mut Cases) {
    c.accepted(7, "{}", 0);
    c.accepted(7, r#"{"__metadata__":{"a":"b"}}"#, 0);
    c.refused_if_strict(7, InvalidJson, r#"{"__metadata__":null}"#, 0);
    for value in [r#"{"a":1}"#, r#"{"a":{}}"#, r#"{"a":null}"#, "[]", "1", "\"a\"", "true"] {
        c.refused(9, InvalidJson, format!(r#"{{"__metadata__":{value}}}"#), 0);
    }
    c.refused(9, InvalidJson, object(&[entry("__metadata__", "U8", "[1]", "[0,1]")]), 1);
    c.refused(9, InvalidJson, object(&[entry(r"\u005f_metadata__", "U8", "[1]", "[0,1]")]), 1);
    c.refused(10, Duplicate, r#"{"__metadata__":{},"__metadata__":{}}"#, 0);
    c.refused(10, Duplicate, r#"{"__metadata__":{},"\u005f_metadata__":{}}"#, 0);
    c.add(10, file(r#"{"__metadata__":null,"__metadata__":{}}"#, 0), Some(InvalidJson), Some(Duplicate));
    c.refused_if_strict(11, Duplicate, r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0);
    c.refused_if_strict(11, Duplicate, r#"{"__metadata__":{"a":"1","b":"","\u0061":"1"}}"#, 0);
    c.refused(36, InvalidJson, format!(r#"{{"__metadata__":{}{}}}"#, "[".repeat(200), "]".repeat(200)), 0);
    c.refused(
        36,
        InvalidJson,
        format!(r#"{{"__metadata__":{{"a":{}{}}}}}"#, "[".repeat(200), "]".repeat(200)),
        0,
    );
    c.accepted(39, r#"{"__metadata__":{"a\u0000":"\u0000"}}"#, 0);
}

fn keys_and_fields(c: &mut Cases) {
    let (old, new) = (entry("a", "U8", "[4]", "[0,4]"), entry("a", "F32", "[1]", "[0,4]"));
    c.refused_if_strict(12, Duplicate, object(&[old.clone(), new]), 4);
    c.refused_if_strict(12, Duplicate, object(&[old.clone(), old.clone()]), 4);
    c.refused_if_strict(12, Duplicate, object(&[entry("a", "U8", "[9]", "[7,5]"), old.clone()]), 4);
    for name in ["a", r"\u0061"] {
        let json = object(&[old.clone(), entry(name, "U8", "[4]", "[4,8]")]);
        c.add(13, file(json, 8), Some(Duplicate), Some(InvalidOffsets));
    }
    c.refused(14, Duplicate, with_fields(r#""dtype":"U8""#), 1);
    c.refused(14, Duplicate, with_fields(r#""shape":[1]"#), 1);
    c.refused(14, Duplicate, with_fields(r#""data_offsets":[0,1]"#), 1);
    c.refused(14, Duplicate, with_fields(r#""d\u0074ype":"U8""#), 1);
    c.accepted(15, with_fields(r#""extra":[1.5,-2,true,null,"x",{"y":{}}]"#), 1);
    c.refused_if_strict(16, InvalidJson, r#"{"a":["F32",[1],[0,4]]}"#, 4);
    for json in [r#"{"a":["F32",[1]]}"#, r#"{"a":["F32",[1],[0,4],0]}"#, r#"{"a":[[1],"F32",[0,4]]}"#] {
        c.refused(16, InvalidJson, json, 4);
    }
    for json in [
        r#"{"a":{"shape":[1],"data_offsets":[0,1]}}"#,
        r#"{"a":{"dtype":"U8","data_offsets":[0,1]}}"#,
        r#"{"a":{"dtype":"U8","shape":[1]}}"#,
        r#"{"a":null}"#,
        r#"{"a":{}}"#,
        r#"{"a":1}"#,
        r#"{"a":{"dtype":null,"shape":[1],"data_offsets":[0,1]}}"#,
    ] {
        c.refused(17, InvalidJson, json, 1);
    }
    for dtype in ["f32", "C128", "I4", "F128", "", "U8 "] {
        c.refused(18, UnknownDtype, one(dtype, "[1]", "[0,1]"), 1);
    }
    for name in ["", "é", r"\u00e9\n", "../../etc/passwd", "a b"] {
        c.accepted(34, object(&[entry(name, "U8", "[1]", "[0,1]")]), 1);
    }
    c.refused_if_strict(34, InvalidName, object(&[entry(r"a\u0000", "U8", "[1]", "[0,1]")]), 1);
    let map_form = |dtype: &str| format!(r#"{{"a":{{"dtype":{dtype},"shape":[1],"data_offsets":[0,1]}}}}"#);
    c.refused_if_strict(37, InvalidJson, map_form(r#"{"U8":null}"#), 1);
    for dtype in [r#"{"U8":{}}"#, r#"{"U8":0}"#, "{}", r#"{"U8":null,"U8":null}"#, r#"["U8"]"#, "4"] {
        c.refused(37, InvalidJson, map_form(dtype), 1);
    }
    c.add(37, file(map_form(r#"{"X":null}"#), 1), Some(InvalidJson), Some(UnknownDtype));
    c.accepted(38, with_fields(r#""x":1,"x":2"#), 1);
    c.refused(40, InvalidJson, with_fields(r#""x":1e400"#), 1);
    c.refused(40, InvalidJson, with_fields(r#""x":"\ud800""#), 1);
    c.refused(40, InvalidJson, with_fields(r#""x":{"\ud800":0}"#), 1);
    for depth in 100..200 {
        let json = with_fields(&format!(r#""x":{}{}"#, "[".repeat(depth), "]".repeat(depth)));
        // 128 levels are too many. Two of them are the header and the entry.
        if depth > 125 { c.refused(40, InvalidJson, json, 1) } else { c.accepted(40, json, 1) }
    }
}

fn numbers(c: &mut Cases) {
    let numbers = [
        "-1",
        "1.0",
        "1e0",
        "\"1\"",
        "null",
        "01",
        "-0",
        "+1",
        "true",
        "[1]",
        "18446744073709551616",
        "1E400",
    ];
    for number in numbers {
        c.refused(19, InvalidJson, one("U8", &format!("[{number}]"), "[0,1]"), 1);
        c.refused(22, InvalidJson, one("U8", "[1]", &format!("[{number},1]")), 1);
        c.refused(22, InvalidJson, one("U8", "[1]", &format!("[0,{number}]")), 1);
    }
    for shape in ["null", "1", "\"1\"", "{}"] {
        c.refused(19, InvalidJson, one("U8", shape, "[0,1]"), 1);
    }
    for offsets in ["[]", "[0]", "[0,1,2]", "{}", "null", "0"] {
        c.refused(22, InvalidJson, one("U8", "[1]", offsets), 1);
    }
    for (dtype, shape) in [
        ("U8", "[4294967296,4294967296]"),
        ("U8", "[1099511627776,1099511627776,0]"),
        ("F64", "[288230376151711744]"),
        ("U8", "[2305843009213693952]"),
        ("F4", "[4611686018427387904]"),
        ("U8", "[18446744073709551615]"),
    ] {
        c.refused(20, Overflow, one(dtype, shape, "[0,0]"), 0);
    }
    c.accepted(21, one("F32", "[0,1099511627776,1099511627776]", "[0,0]"), 0);
}

fn layout(c: &mut Cases) {
    for (json, data) in [("{}".to_owned(), 1), (bytes(&[("a", 0, 4)]), 3), (bytes(&[("a", 0, 4)]), 0)] {
        c.refused(8, IncompleteCover, json, data);
    }
    c.refused(8, IncompleteCover, bytes(&[("a", 0, 4)]), 5);
    for (tensors, data) in [
        (&[("a", 4, 0)][..], 4),
        (&[("a", 1, 5)], 5),
        (&[("a", 0, 4), ("b", 5, 6)], 6),
        (&[("a", 0, 4), ("b", 3, 6)], 6),
        (&[("a", 0, 4), ("b", 0, 4)], 4),
        (&[("a", 0, 4), ("b", 2, 2)], 4),
        (&[("a", 0, u64::MAX), ("b", u64::MAX, 4)], 4),
    ] {
        let kind = if tensors[0].2 == u64::MAX { Overflow } else { InvalidOffsets };
        c.refused(23, kind, bytes(tensors), data);
    }
    c.accepted(24, bytes(&[("a", 4, 6), ("b", 0, 4)]), 6);
    for shape in ["[1]", "[3]", "[0]", "[]", "[2,2]"] {
        c.refused(25, InvalidSize, one("F32", shape, "[0,8]"), 8);
    }
    c.refused(26, IncompleteCover, one("U8", "[1152921504606846976]", "[0,1152921504606846976]"), 0);
    for (dtype, shape) in [("F4", "[3]"), ("F6_E2M3", "[2]"), ("F6_E3M2", "[5]"), ("F4", "[]")] {
        c.refused(27, SubByte, one(dtype, shape, "[0,1]"), 1);
    }
    c.accepted(27, one("F4", "[2]", "[0,1]"), 1);
    c.accepted(27, one("F6_E2M3", "[4]", "[0,3]"), 3);
    c.accepted(28, one("F32", "[]", "[0,4]"), 4);
    c.accepted(28, bytes(&[("a", 0, 0), ("b", 0, 4), ("c", 4, 4), ("d", 4, 4), ("e", 4, 5), ("f", 5, 5)]), 5);
    c.accepted(29, one("U8", &format!("[{}1]", "1,".repeat(999)), "[0,1]"), 1);
    for padding in 0..8 {
        let json = object(&[entry("a", "U8", "[1]", "[0,1]"), entry("b", "F32", "[1]", "[1,5]")]);
        c.accepted(35, format!("{json}{}", " ".repeat(padding)), 5);
    }
}

fn all() -> Vec<Case> {
    let mut cases = Cases::default();
    for add in [lengths_and_text, metadata, keys_and_fields, numbers, layout] {
        add(&mut cases);
    }
    cases.0
}

#[test]
fn every_row_of_the_table_is_covered() {
    let mut rows: Vec<_> = all().iter().map(|case| case.row).collect();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows, (1..=40).collect::<Vec<_>>());
}

#[test]
fn every_odd_file_has_the_stated_outcome() {
    for Case { row, file, strict, upstream } in all() {
        let shown = || String::from_utf8_lossy(&file[..file.len().min(300)]).into_owned();
        for (strictness, expected) in [(Strictness::Strict, strict), (Strictness::Upstream, upstream)] {
            let found = parse(&file, strictness).err();
            let kind = found.as_ref().map(|error| error.kind);
            assert_eq!(kind, expected, "row {row}, {strictness:?}: {} {found:?}", shown());
        }
    }
}

#[test]
fn the_safetensors_crate_has_the_outcome_stated_for_it() {
    for Case { row, file, upstream, .. } in all() {
        super::differential::assert_agrees(&file);
        let accepted = safetensors::SafeTensors::deserialize(&file).is_ok();
        assert_eq!(accepted, upstream.is_none(), "row {row}: {}", String::from_utf8_lossy(&file));
    }
}
