//! The safetensors header, compared with the rules of the format and with the `safetensors` crate.

mod cases;
mod differential;

use pagestream::internals::{
    Dtype, Header, HeaderError, HeaderErrorKind, MAX_HEADER_BYTES, Strictness, header_bytes,
};

/// Returns a file with this header and this many bytes of data.
fn file(json: impl AsRef<[u8]>, data: usize) -> Vec<u8> {
    let json = json.as_ref();
    let length = (json.len() as u64).to_le_bytes();
    [&length, json, &vec![0; data]].concat()
}

fn parse(file: &[u8], strictness: Strictness) -> Result<Header, HeaderError> {
    let size = file.len() as u64;
    let length = header_bytes(&file[..file.len().min(8)], size)? as usize;
    Header::parse(&file[8..8 + length], size, strictness)
}

fn strict(json: &str, data: usize) -> Result<Header, HeaderError> {
    parse(&file(json, data), Strictness::Strict)
}

fn refusal(json: &str, data: usize) -> HeaderError {
    strict(json, data).expect_err("the header should be refused")
}

fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

fn object(entries: &[String]) -> String {
    format!("{{{}}}", entries.join(","))
}

#[test]
fn tensors_are_found_by_name_and_in_both_orders() {
    let json = object(&[
        entry("m", "F32", "[2]", "[4,12]"),
        entry("z", "U8", "[4]", "[0,4]"),
        entry("b", "F32", "[0,3]", "[4,4]"),
        entry("a", "F32", "[0]", "[4,4]"),
    ]);
    let header = strict(&json, 12).expect("valid");
    assert_eq!(header.tensors().map(|t| t.name).collect::<Vec<_>>(), ["a", "b", "m", "z"]);
    assert_eq!(header.tensors_by_offset().map(|t| t.name).collect::<Vec<_>>(), ["z", "a", "b", "m"]);
    let tensor = header.tensor("m").expect("present");
    assert_eq!(
        (tensor.dtype, tensor.shape, tensor.offset - header.data_start, tensor.len),
        (Dtype::F32, &[2][..], 4, 8)
    );
    assert_eq!(header.tensor("n"), None);
    assert_eq!((header.len(), header.data_start), (4, 8 + json.len() as u64));
}

#[test]
fn names_with_a_common_prefix_are_distinguished() {
    let alike = "model.layers.0.";
    let ends = ["é", "b", "aaaaaaaab", "aaaaaaaaa", "aaaaaaaa", "a\0", "a", "\0\0", "\0", ""];
    let mut names: Vec<_> = ends.iter().map(|end| format!("{alike}{end}")).collect();
    let escaped = |name: &String| entry(&name.replace('\0', r"\u0000"), "U8", "[0]", "[0,0]");
    let json = object(&names.iter().map(escaped).collect::<Vec<_>>());
    let header = parse(&file(json, 0), Strictness::Upstream).expect("accepted");
    names.sort();
    assert_eq!(header.tensors().map(|t| t.name).collect::<Vec<_>>(), names);
    assert!(names.iter().all(|name| header.tensor(name).is_some_and(|tensor| tensor.name == name)));
}

#[test]
fn metadata_keeps_the_order_of_the_file() {
    let json = r#"{"__metadata__":{"b":"1","a\n":"\u00e9","":""}}"#;
    let header = strict(json, 0).expect("valid");
    let pairs: Vec<_> = header.metadata().expect("present").collect();
    assert_eq!(pairs, [("b", "1"), ("a\n", "é"), ("", "")]);
    assert!(strict("{}", 0).expect("valid").metadata().is_none());
    assert!(strict(r#"{"__metadata__":{}}"#, 0).expect("valid").metadata().is_some());
}

#[test]
fn upstream_lets_the_last_duplicate_win() {
    let json = object(&[
        r#""__metadata__":{"k":"old","other":"1","k":"new","k":"newest"}"#.into(),
        entry("a", "U8", "[9]", "[5,14]"),
        entry("b", "U8", "[1]", "[4,5]"),
        entry(r"\u0061", "F32", "[1]", "[0,4]"),
    ]);
    let header = parse(&file(json, 5), Strictness::Upstream).expect("accepted");
    assert_eq!(header.metadata().expect("present").collect::<Vec<_>>(), [("other", "1"), ("k", "newest")]);
    assert_eq!(header.tensors().map(|t| (t.name, t.len)).collect::<Vec<_>>(), [("a", 4), ("b", 1)]);
}

#[test]
fn unknown_fields_warn_and_the_warnings_are_bounded() {
    let with_fields =
        |fields: &str| format!(r#"{{"t":{{"dtype":"U8",{fields}"shape":[1],"data_offsets":[0,1]}}}}"#);
    let header = strict(&with_fields(r#""extra":[{"x":null}],"#), 1).expect("valid");
    assert_eq!(header.warnings(), [r#"tensor "t": unknown field "extra" is ignored"#]);
    let header = strict(&with_fields(&r#""x":0,"#.repeat(1000)), 1).expect("valid");
    assert_eq!(header.warnings().len(), 17);
    assert_eq!(header.warnings()[16], "984 more unknown fields are ignored");
}

#[test]
fn errors_say_what_was_found_what_was_expected_and_where() {
    let second = entry("b", "F32", "[2]", "[4,11]");
    let json = object(&[entry("a", "F32", "[1]", "[0,4]"), second.clone()]);
    let error = refusal(&json, 11);
    assert_eq!(error.offset, Some(8 + (json.len() - 1 - second.len()) as u64));
    assert_eq!(
        error.detail,
        "invalid shape, data type, or offset for tensor \"b\": F32 of shape [2] takes 8 bytes, \
         its data_offsets [4, 11] hold 7"
    );

    let json = object(&[entry("a", "U8", "[4]", "[0,4]")]);
    let end = 8 + json.len();
    for (data, difference) in [(3, "short by 1"), (0, "short by 4"), (6, "2 extra")] {
        let error = refusal(&json, data);
        let text = format!(
            "incomplete metadata, file not fully covered: the tensors end at byte {}, the file has {} \
             bytes ({difference})",
            end + 4,
            end + data
        );
        assert_eq!(error.detail, text);
        assert_eq!(error.offset, Some((end + data.min(4)) as u64));
    }

    let json = r#"{"a":1, "b":{"dtype":"U8"}}"#;
    assert_eq!(refusal(json, 0).offset, Some(8 + 5));
    let json = "{\n\n \"a\": \n x}";
    assert_eq!(refusal(json, 0).offset, Some(8 + json.find('x').expect("present") as u64));
    assert!(refusal(json, 0).to_string().ends_with("(at byte 19)"));
}

#[test]
fn errors_name_the_tensor() {
    let named = |json: &str| refusal(json, 0).detail;
    assert!(named(r#"{"t":{"dtype":"U8","shape":[1.0]}}"#).contains(r#"tensor "t": invalid type"#));
    assert!(named(r#"{"t":{"dtype":"f32"}}"#).starts_with(r#"tensor "t": unknown variant "f32""#));
    assert!(named(r#"{"t":{"dtype":"U8","shape":[1]}}"#).contains("missing field `data_offsets`"));
    let twice = [entry("t", "U8", "[1]", "[0,1]"), entry("t", "U8", "[1]", "[1,2]")];
    assert_eq!(named(&object(&twice)), r#"duplicate key "t" in the header, first at byte 9"#);
}

#[test]
fn errors_stay_short() {
    let name = "n\u{10ffff}".repeat(100_000);
    for json in [
        object(&[entry(&name, "U8", "[2]", "[0,1]")]),
        object(&[entry("t", &name, "[2]", "[0,1]")]),
        object(&[entry("t", "U8", &format!("\"{name}\""), "[0,1]")]),
        object(&[entry("t", "U8", &format!("[{}1]", "1,".repeat(100_000)), "[0,2]")]),
    ] {
        assert!(refusal(&json, 1).to_string().len() < 3000);
    }
}

#[test]
fn a_claimed_length_is_checked_before_anything_is_read() {
    let kind = |length: u64, size: u64| header_bytes(&length.to_le_bytes(), size).map_err(|e| e.kind);
    assert_eq!(kind(MAX_HEADER_BYTES, 16), Err(HeaderErrorKind::InvalidLength));
    assert_eq!(kind(MAX_HEADER_BYTES, MAX_HEADER_BYTES + 7), Err(HeaderErrorKind::InvalidLength));
    assert_eq!(kind(MAX_HEADER_BYTES, MAX_HEADER_BYTES + 8), Ok(MAX_HEADER_BYTES));
    assert_eq!(kind(MAX_HEADER_BYTES + 1, u64::MAX), Err(HeaderErrorKind::TooLarge));
    assert_eq!(kind(0, 7), Err(HeaderErrorKind::TooSmall));
    assert_eq!(header_bytes(&[0; 7], 100).map_err(|e| e.kind), Err(HeaderErrorKind::TooSmall));
    let error = Header::parse(b"{}", 9, Strictness::Strict).expect_err("the JSON exceeds the file");
    assert_eq!(error.kind, HeaderErrorKind::InvalidLength);
}

/// Upstream adds these numbers in 64 bits, which panics with overflow checks.
#[test]
fn tensors_that_claim_all_of_64_bits_are_refused_without_overflow() {
    let step = (1 << 61) - 1;
    let tensor = |i: u64| {
        let (begin, end) = (i * step, ((i + 1).saturating_mul(step)));
        entry(&i.to_string(), "U8", &format!("[{}]", end - begin), &format!("[{begin},{end}]"))
    };
    let json = object(&(0..9).map(tensor).collect::<Vec<_>>());
    for strictness in [Strictness::Strict, Strictness::Upstream] {
        let error = parse(&file(&json, 0), strictness).expect_err("refused");
        assert_eq!(error.kind, HeaderErrorKind::IncompleteCover);
        assert!(error.detail.contains("short by 18446744073709551615"), "{error}");
    }
}
