//! `weights::index` and the order of names.

use pagestream::internals::{Index, MAX_SHARDS, Strictness, compare};
use std::cmp::Ordering;

use proptest::prelude::*;

fn parse(json: &str) -> Result<Index, String> {
    Index::parse(json.as_bytes(), Strictness::Strict).map_err(|error| error.to_string())
}

fn names(index: &Index) -> Vec<(String, String)> {
    index.names().map(|(name, shard)| (name.into(), index.shards()[shard].clone())).collect()
}

#[test]
fn names_are_sorted_and_shards_in_natural_order() {
    let json = r#"{"weight_map": {"c": "m-10", "a": "m-2", "b": "m-10", "d": "m-1"}, "metadata": {"n": 1}}"#;
    let index = parse(json).expect("valid");
    assert_eq!(index.shards(), ["m-1", "m-2", "m-10"]);
    let pair = |name: &str, shard: &str| (name.to_owned(), shard.to_owned());
    assert_eq!(names(&index), [pair("a", "m-2"), pair("b", "m-10"), pair("c", "m-10"), pair("d", "m-1")]);
    assert_eq!(index.metadata(), Some(r#"{"n": 1}"#));
    assert_eq!(index.shard_of("b"), Some(2));
    assert_eq!(index.shard_of("bb"), None);
}

#[test]
fn metadata_may_be_absent_and_other_fields_are_ignored() {
    for json in [
        r#"{"weight_map": {}}"#,
        r#"{"metadata": null, "weight_map": {}}"#,
        r#"{"extra": [1, {"weight_map": 5}], "weight_map": {}}"#,
    ] {
        let index = parse(json).expect(json);
        assert_eq!((index.len(), index.metadata()), (0, None), "{json}");
    }
}

#[test]
fn escaped_names_are_unescaped() {
    let index = parse(r#"{"weight_map": {"\u0061\n": "\u0062"}}"#).expect("valid");
    assert_eq!(names(&index), [("a\n".into(), "b".into())]);
}

#[test]
fn an_invalid_index_is_refused_with_the_reason() {
    for (json, words) in [
        ("", "EOF"),
        ("[]", "expected an object with `weight_map`"),
        ("null", "expected an object"),
        ("{}", "no `weight_map`"),
        (r#"{"metadata": {}}"#, "no `weight_map`"),
        (r#"{"weight_map": null}"#, "an object of files' names"),
        (r#"{"weight_map": ["a"]}"#, "an object of files' names"),
        (r#"{"weight_map": {"t": 5}}"#, "the name of the file of tensor \"t\""),
        (r#"{"weight_map": {"t": null}}"#, "tensor \"t\""),
        (r#"{"weight_map": {"t": ["a"]}}"#, "tensor \"t\""),
        (r#"{"weight_map": {"t": {"a": 1}}}"#, "tensor \"t\""),
        (r#"{"weight_map": {}} x"#, "trailing characters"),
        (r#"{"weight_map": {}, "weight_map": {}}"#, "duplicate field `weight_map`"),
        (r#"{"weight_map": {}, "metadata": {}, "metadata": {}}"#, "duplicate field `metadata`"),
        (r#"{"weight_map": {}, "metadata": [1]}"#, "`metadata` is not an object"),
        (r#"{"weight_map": {"t": "a",}}"#, "trailing comma"),
        ("\u{feff}{\"weight_map\": {}}", "expected value"),
    ] {
        let message = parse(json).expect_err(json);
        assert!(message.contains(words), "{json}: {message}");
    }
    let message =
        Index::parse(b"{\"weight_map\": {\"\xff\": \"a\"}}", Strictness::Strict).expect_err("UTF-8");
    assert!(message.to_string().contains("UTF-8"), "{message}");
}

#[test]
fn the_last_of_two_counts() {
    let lenient = |json: &str| Index::parse(json.as_bytes(), Strictness::Upstream).expect(json);
    let index = lenient(r#"{"weight_map": {"t": "a", "u": "a", "t": "b"}}"#);
    assert_eq!(names(&index), [("t".into(), "b".into()), ("u".into(), "a".into())]);
    assert_eq!((index.repeated.count, index.repeated.names().as_str()), (1, "\"t\""));
    let index = lenient(r#"{"metadata": {"a": 1}, "weight_map": {"t": "a"}, "weight_map": {"u": "b"}}"#);
    assert_eq!(names(&index), [("u".into(), "b".into())]);
    assert_eq!(index.metadata(), Some(r#"{"a": 1}"#));
    let index =
        lenient(r#"{"weight_map": {"t": "a", "u": "b"}, "weight_map": {"v": "b", "w": "a", "x": "b"}}"#);
    assert_eq!(index.shards(), ["a", "b"]);
    assert_eq!(names(&index), [("v".into(), "b".into()), ("w".into(), "a".into()), ("x".into(), "b".into())]);
    assert_eq!(lenient(r#"{"metadata": {"a": 1}, "weight_map": {}, "metadata": [1]}"#).metadata(), None);
}

#[test]
fn paths_that_are_not_plain_and_relative_are_refused_together() {
    let wrong = [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("../a", "leaves"),
        ("a/../../b", "leaves"),
        ("a/..", "leaves"),
        ("..", "leaves"),
        (".", "\\\".\\\""),
        ("./a", "\\\".\\\""),
        ("a//b", "empty component"),
        ("a/", "empty component"),
        ("a\\\\b", "backslash"),
        ("..\\\\a", "backslash"),
        ("C:a", "drive"),
        ("c:/a", "drive"),
        ("a\\u0000b", "NUL"),
    ];
    for (name, words) in wrong {
        let json = format!(r#"{{"weight_map": {{"t": "good", "u": "{name}"}}}}"#);
        let message = parse(&json).expect_err(name);
        assert!(message.contains("1 of 2 files' names"), "{message}");
        assert!(message.replace('"', "\\\"").contains(words), "{name}: {message}");
    }
    let all: Vec<_> = wrong.iter().enumerate().map(|(n, (name, _))| format!(r#""{n}": "{name}""#)).collect();
    let message = parse(&format!(r#"{{"weight_map": {{{}}}}}"#, all.join(","))).expect_err("all");
    assert!(message.contains("15 of 15 files' names") && message.contains(", ..."), "{message}");
    let first = |count: usize| parse(&format!(r#"{{"weight_map": {{{}}}}}"#, all[..count].join(",")));
    assert!(!first(5).expect_err("five").contains("..."));
    assert!(first(6).expect_err("six").contains(", ..."));
    assert!(parse(r#"{"weight_map": {"t": "below/deeper/a..b", "u": "..."}}"#).is_ok());
}

#[test]
fn natural_order_counts_numbers() {
    let sorted =
        ["", "1", "2", "10", "a", "a1", "a-1", "a-01", "a-01b", "a-2", "a-10", "a-10b", "b", "\u{e4}"];
    for (left, a) in sorted.iter().enumerate() {
        for (right, b) in sorted.iter().enumerate() {
            let found = compare(a.as_bytes(), b.as_bytes());
            let expected = if (*a, *b) == ("a-1", "a-01") { Ordering::Greater } else { left.cmp(&right) };
            let expected = if (*a, *b) == ("a-01", "a-1") { Ordering::Less } else { expected };
            assert_eq!(found, expected, "{a} {b}");
        }
    }
    let large = ["m-99999999999999999999998", "m-99999999999999999999999", "m-100000000000000000000000"];
    assert!(large.is_sorted_by(|a, b| compare(a.as_bytes(), b.as_bytes()).is_lt()));
}

proptest! {
    #![proptest_config(crate::cases(256))]

    #[test]
    fn no_bytes_make_it_panic(json: Vec<u8>) {
        let _ = Index::parse(&json, Strictness::Strict);
        let _ = Index::parse(&json, Strictness::Upstream);
    }

    #[test]
    fn what_is_written_is_read(map: std::collections::BTreeMap<String, (u8,)>) {
        let shards: std::collections::BTreeMap<_, _> =
            map.iter().map(|(name, (shard,))| (name.clone(), format!("shard-{shard}"))).collect();
        let json = serde_json::json!({ "weight_map": shards }).to_string();
        let index = parse(&json).expect("valid");
        let found: std::collections::BTreeMap<_, _> = names(&index).into_iter().collect();
        prop_assert_eq!(found, shards);
    }

    #[test]
    fn natural_order_is_an_order(a in "[a0-9-]{0,8}", b in "[a0-9-]{0,8}", c in "[a0-9-]{0,8}") {
        let (a, b, c) = (a.as_bytes(), b.as_bytes(), c.as_bytes());
        prop_assert_eq!(compare(a, b), compare(b, a).reverse());
        prop_assert_eq!(compare(a, b).is_eq(), a == b);
        if compare(a, b).is_le() && compare(b, c).is_le() {
            prop_assert!(compare(a, c).is_le());
        }
    }
}

#[test]
fn indexes_of_transformers_are_read() {
    let text = "{\n  \"metadata\": {\n    \"total_parameters\": 5,\n    \"total_size\": 20\n  },\n  \
                \"weight_map\": {\n    \"a\": \"model-1.safetensors\",\n    \"b\": \"model-2.safetensors\"\n  }\n}\n";
    let found = parse(text).expect("valid");
    assert_eq!(found.shards(), ["model-1.safetensors", "model-2.safetensors"]);
    assert_eq!(found.metadata(), Some("{\n    \"total_parameters\": 5,\n    \"total_size\": 20\n  }"));
    assert_eq!(found.names().collect::<Vec<_>>(), [("a", 0), ("b", 1)]);
}

/// The number of files is limited before anything is built from them.
#[test]
fn an_index_of_more_files_than_any_checkpoint_has_is_refused() {
    let index = |files: usize| {
        let pairs: Vec<_> = (0..files).map(|number| format!("\"{number}\":\"f{number}\"")).collect();
        format!("{{\"weight_map\":{{{}}}}}", pairs.join(","))
    };
    assert_eq!(parse(&index(MAX_SHARDS)).expect("valid").shards().len(), MAX_SHARDS);
    let message = parse(&index(MAX_SHARDS + 1)).expect_err("refused");
    assert!(message.starts_with("`weight_map` names more than 65536 files"), "{message}");
}

/// The binding passes `metadata` to another JSON reader, which must accept it.
#[test]
fn metadata_that_no_reader_takes_is_refused() {
    let deep = format!("{{\"x\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let digits = format!("{{\"total_size\": {}}}", "9".repeat(5000));
    for (metadata, words) in [
        (deep.as_str(), "recursion limit exceeded"),
        (&digits, "number out of range"),
        ("{\"total_size\": 1e999}", "number out of range"),
        ("{\"total_size\": \"\\ud800\"}", "end of hex escape"),
        ("{\"total_size\": NaN}", "expected value"),
    ] {
        let json = format!("{{\"metadata\": {metadata}, \"weight_map\": {{}}}}");
        for strictness in [Strictness::Strict, Strictness::Upstream] {
            let message = Index::parse(json.as_bytes(), strictness).expect_err("refused");
            assert!(message.to_string().contains(words), "{message}");
        }
    }
}
