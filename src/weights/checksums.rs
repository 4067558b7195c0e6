//! The checksums of a safetensors file, stored beside it in `<file>.xxh3.json`:
//!
//! ```json
//! {
//!  "format": "pagestream-checksums",
//!  "version": 1,
//!  "algorithm": "xxh3-128",
//!  "file_bytes": 116,
//!  "header": "9a4c3f0d5a1c1ef1b7ac2a2d0c1e7f55",
//!  "tensors": {
//!   "bias": "99aa06d3014798d86001c324468d497f"
//!  }
//! }
//! ```
//!
//! The header is the file's bytes before the data, including its length. Header and tensors cover the whole file: a
//! header that leaves bytes out is rejected. Tensors come in the order of their data, and checksums have the digits of
//! `xxhsum -H128`. The text for a given file is always the same.
//!
//! Checksums come from the same source as the weights. Their length is therefore limited before they are read, and they
//! are rejected unless they have exactly this form. They prove nothing against a program that can write them.

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};

use super::header::{Header, TensorEntry, quoted};
use super::json::{Any, Word};
use crate::error::{ChecksumFailure, Error, Result};
use crate::mapped_file::{MappedFile, Origin, RequestedMode, is_gone};
use crate::os::errno::Code;

/// The suffix added to the file name.
const SUFFIX: &str = ".xxh3.json";

const TOO_LONG: i32 = Code::NAMETOOLONG.raw_os_error();
const IS_A_DIRECTORY: i32 = Code::ISDIR.raw_os_error();

const FORMAT: &str = "pagestream-checksums";
const VERSION: u64 = 1;
const ALGORITHM: &str = "xxh3-128";

/// Maximum length of the text for this header: each entry is shorter than the header's own entry.
fn max_bytes(header: &Header) -> u64 {
    (64 << 10) + 2 * header.data_start
}

/// The contents of the text, for a file with a known header.
#[derive(Debug, PartialEq, Eq)]
pub struct Checksums {
    file_bytes: u64,
    header: u128,
    /// One checksum for each tensor, in order of the names.
    tensors: Vec<Option<u128>>,
    /// Names that the header lacks.
    unknown: Vec<String>,
}

/// The reason why a text is rejected, and the offset of the faulty byte.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed {
    pub offset: Option<u64>,
    pub detail: String,
}

/// A file that is compared with its checksums.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub path: &'a Path,
    pub header: &'a Header,
    pub file_bytes: u64,
}

/// Returns a checksum as hexadecimal digits.
fn digits(checksum: u128) -> String {
    format!("{checksum:032x}")
}

/// Returns the ends of the header and of each tensor, in order of the data. Each end is the start of the next span.
pub fn span_ends(header: &Header) -> Vec<u64> {
    let ends = header.tensors_by_offset().map(|entry| entry.offset + entry.len);
    std::iter::once(header.data_start).chain(ends).collect()
}

/// Returns the text for a file, given the checksums of the spans of [`span_ends`].
pub fn text(header: &Header, file_bytes: u64, spans: &[u128]) -> String {
    let (first, tensors) = spans.split_first().map_or((0, spans), |(&first, rest)| (first, rest));
    let mut text = format!(
        "{{\n \"format\": \"{FORMAT}\",\n \"version\": {VERSION},\n \"algorithm\": \"{ALGORITHM}\",\n \
         \"file_bytes\": {file_bytes},\n \"header\": \"{}\",\n \"tensors\": {{",
        digits(first)
    );
    for (number, (entry, &checksum)) in header.tensors_by_offset().zip(tensors).enumerate() {
        let comma = if number == 0 { "" } else { "," };
        let name = serde_json::Value::from(entry.name);
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}\n  {name}: \"{checksum:032x}\"");
    }
    text.push_str("\n }\n}\n");
    text
}

impl Checksums {
    /// Reads the checksums beside a file, as `path`; `None` if there are none. The inner error gives the reason for a
    /// rejection. The outer error concerns more than this file.
    pub fn beside(origin: &Origin, path: &Path, header: &Header) -> Result<Option<Result<Self>>> {
        let refused = |offset, detail| Ok(Some(Err(failure(path, None, offset, None, detail))));
        let unusable = |error: Error| {
            if concerns_more_than_the_file(&error) {
                return Err(error);
            }
            let reason = error.message();
            let advice = "remove what is there, and write_checksums() makes new ones";
            refused(None, format!("the checksums cannot be used: {reason}; {advice}"))
        };
        let file = match MappedFile::open_again(&origin.with_suffix(SUFFIX), RequestedMode::Read) {
            Ok(file) => file,
            // No file can have a name that long.
            Err(Error::System { errno, .. }) if is_gone(errno) || errno == TOO_LONG => return Ok(None),
            Err(Error::System { operation, errno: errno @ IS_A_DIRECTORY, .. }) => {
                return unusable(Error::system(operation, path, errno, "it is a directory"));
            }
            Err(error) => return unusable(error),
        };
        let (found, most) = (file.size(), max_bytes(header));
        if found > most {
            return refused(
                None,
                format!("checksums too large: found {found} bytes, expected at most {most}"),
            );
        }
        let json = match file.opened().and_then(|opened| opened.read(0, found)) {
            Ok(json) => json,
            Err(error) => return unusable(error),
        };
        match Self::parse(&json, header) {
            Ok(checksums) => Ok(Some(Ok(checksums))),
            Err(Malformed { offset, detail }) => {
                refused(offset, format!("invalid checksums: {detail}; write_checksums() makes new ones"))
            }
        }
    }

    /// Parses the text for a file with this header.
    pub fn parse(json: &[u8], header: &Header) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(json).map_err(|error| Malformed {
            offset: Some(error.valid_up_to() as u64),
            detail: format!("invalid UTF-8: {error}"),
        })?;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let read = Any(ChecksumsVisitor(header)).deserialize(&mut deserializer);
        read.and_then(|found| deserializer.end().map(|()| found)).map_err(|error| {
            let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1));
            let line_start: usize = lines.map(str::len).sum();
            let offset = (line_start + error.column().saturating_sub(1)) as u64;
            Malformed { offset: (error.line() > 0).then_some(offset), detail: error.to_string() }
        })
    }

    /// Returns all mismatches with a file whose first spans have these checksums: its size, the header, each tensor,
    /// and names that are not in both.
    pub fn failures(&self, of: Subject<'_>, spans: &[u128]) -> Vec<Error> {
        let mut found = Vec::new();
        if self.file_bytes != of.file_bytes {
            let (expected, size) = (self.file_bytes, of.file_bytes);
            let detail = format!("found {size} bytes, expected {expected} as in its checksums: {HINT}");
            let both = Some((expected.to_string(), size.to_string()));
            found.push(failure(of.path, None, Some(0), both, detail));
        }
        let mut spans = spans.iter();
        if let Some(&header) = spans.next().filter(|&&header| header != self.header) {
            found.push(mismatch(of.path, None, 0, (self.header, header)));
        }
        let tensors = of.header.tensors_by_offset().zip(spans);
        found.extend(tensors.filter_map(|(entry, &checksum)| self.check(of, &entry, checksum).err()));
        for name in &self.unknown {
            let detail =
                format!("its checksums name tensor {}, which it does not have: {HINT}", quoted(name));
            found.push(failure(of.path, Some(name), None, None, detail));
        }
        found
    }

    /// Returns an error for a tensor whose bytes do not have the expected checksum, or for which none is expected.
    pub fn check(&self, of: Subject<'_>, entry: &TensorEntry<'_>, checksum: u128) -> Result<()> {
        let expected = self.expected(of, entry)?;
        if expected == checksum {
            return Ok(());
        }
        Err(mismatch(of.path, Some(entry.name), entry.offset, (expected, checksum)))
    }

    /// Returns the expected checksum of a tensor of the file.
    pub fn expected(&self, of: Subject<'_>, entry: &TensorEntry<'_>) -> Result<u128> {
        of.header.rank(entry.name).and_then(|rank| self.tensors[rank]).ok_or_else(|| {
            let detail = format!("its checksums leave out tensor {}: {HINT}", quoted(entry.name));
            failure(of.path, Some(entry.name), Some(entry.offset), None, detail)
        })
    }
}

/// Returns whether other files would fail with the same error: the process lacks descriptors or memory, or the
/// checkpoint was closed.
fn concerns_more_than_the_file(error: &Error) -> bool {
    match error {
        Error::System { errno, .. } => {
            [Code::MFILE, Code::NFILE, Code::NOMEM].map(Code::raw_os_error).contains(errno)
        }
        Error::MappedRead { .. } | Error::FileChanged { .. } => false,
        _ => true,
    }
}

const HINT: &str =
    "the file is damaged, or was written after its checksums; write_checksums() makes new ones";

/// Returns the error for bytes with an unexpected checksum.
pub fn mismatch(path: &Path, name: Option<&str>, offset: u64, (expected, found): (u128, u128)) -> Error {
    let what = name.map_or_else(|| "its header".into(), |name| format!("tensor {}", quoted(name)));
    let (expected, found) = (format!("{expected:032x}"), format!("{found:032x}"));
    let detail = format!("{what} at byte {offset} has the {ALGORITHM} {found}, expected {expected}: {HINT}");
    failure(path, name, Some(offset), Some((expected, found)), detail)
}

/// Returns the error for a file without checksums beside it.
pub fn missing(path: &Path) -> Error {
    let detail = "it has no checksums beside it, which write_checksums() makes; verify() also checks a file of the \
                  Hugging Face cache by its name";
    failure(path, None, None, None, detail.into())
}

/// Returns the path of the checksums of a file.
pub fn path_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

/// Returns a failure. `both` is the pair of the expected and the actual checksum.
pub fn failure(
    path: &Path,
    name: Option<&str>,
    offset: Option<u64>,
    both: Option<(String, String)>,
    detail: String,
) -> Error {
    let (expected, found) = both.unzip();
    let (path, name) = (path.into(), name.map(str::to_owned));
    Error::Checksum(Box::new(ChecksumFailure { path, name, offset, expected, found, detail }))
}

/// Returns the number that 32 lower-case hexadecimal digits represent.
fn checksum_of(text: &str) -> Option<u128> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_whole = text.len() == 32 && text.bytes().all(is_digit);
    is_whole.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Reads a checksum. An error names its owner, `whose`.
fn checksum<'de, M: MapAccess<'de>>(map: &mut M, whose: &str) -> Result<u128, M::Error> {
    let found = map.next_value_seed(Any(Word { what: "a checksum", read: checksum_of }))?;
    found.ok_or_else(|| {
        M::Error::custom(format_args!("the checksum of {whose} is not 32 hexadecimal digits in lower case"))
    })
}

struct ChecksumsVisitor<'h>(&'h Header);

impl<'de> Visitor<'de> for ChecksumsVisitor<'_> {
    type Value = Checksums;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object with checksums")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Checksums, M::Error> {
        let (mut format, mut version, mut algorithm) = (None, None, None);
        let (mut file_bytes, mut header, mut tensors) = (None, None, None);
        while let Some(field) =
            map.next_key_seed(Any(Word { what: "a field's name", read: str::to_owned }))?
        {
            let is_repeated = match field.as_str() {
                "format" => format.replace(word(&mut map, "format", FORMAT)?).is_some(),
                "version" => version.replace(known_version(&mut map)?).is_some(),
                "algorithm" => algorithm.replace(word(&mut map, "algorithm", ALGORITHM)?).is_some(),
                "file_bytes" => file_bytes.replace(map.next_value_seed(Any(SizeVisitor))?).is_some(),
                "header" => header.replace(checksum(&mut map, "the header")?).is_some(),
                "tensors" => tensors.replace(map.next_value_seed(Any(TensorsVisitor(self.0)))?).is_some(),
                other => {
                    return Err(M::Error::custom(format_args!("unknown field {}", quoted(other))));
                }
            };
            if is_repeated {
                return Err(M::Error::custom(format_args!("duplicate field {}", quoted(&field))));
            }
        }
        let missing = |name: &'static str| move || M::Error::missing_field(name);
        format.ok_or_else(missing("format"))?;
        version.ok_or_else(missing("version"))?;
        algorithm.ok_or_else(missing("algorithm"))?;
        let (tensors, unknown) = tensors.ok_or_else(missing("tensors"))?;
        Ok(Checksums {
            file_bytes: file_bytes.ok_or_else(missing("file_bytes"))?,
            header: header.ok_or_else(missing("header"))?,
            tensors,
            unknown,
        })
    }
}

/// Reads a string that must equal `expected`.
fn word<'de, M: MapAccess<'de>>(map: &mut M, field: &str, expected: &str) -> Result<(), M::Error> {
    let found = map.next_value_seed(Any(Word { what: "a string", read: str::to_owned }))?;
    if found == expected {
        return Ok(());
    }
    let found = quoted(&found);
    Err(M::Error::custom(format_args!("`{field}` is {found}, expected \"{expected}\"")))
}

fn known_version<'de, M: MapAccess<'de>>(map: &mut M) -> Result<(), M::Error> {
    match map.next_value_seed(Any(SizeVisitor))? {
        VERSION => Ok(()),
        found => Err(M::Error::custom(format_args!("`version` is {found}, expected {VERSION}"))),
    }
}

/// Reads a whole number, without a fraction or an exponent.
struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a whole number below 2^64")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }
}

struct TensorsVisitor<'h>(&'h Header);

impl<'de> Visitor<'de> for TensorsVisitor<'_> {
    type Value = (Vec<Option<u128>>, Vec<String>);

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("`tensors` to be an object of checksums")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut tensors = vec![None; self.0.len()];
        let (mut unknown, mut seen) = (Vec::new(), HashSet::new());
        while let Some(name) =
            map.next_key_seed(Any(Word { what: "a tensor's name", read: str::to_owned }))?
        {
            let found = checksum(&mut map, &quoted(&name))?;
            let is_repeated = match self.0.rank(&name) {
                Some(rank) => tensors[rank].replace(found).is_some(),
                None => !seen.insert(name.clone()),
            };
            if is_repeated {
                return Err(M::Error::custom(format_args!("duplicate tensor {}", quoted(&name))));
            }
            if seen.len() > unknown.len() {
                unknown.push(name);
            }
        }
        Ok((tensors, unknown))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;
    use crate::weights::strictness::Strictness;

    const JSON: &str = r#"{"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"a":{"dtype":"U8","shape":[0],"data_offsets":[3,3]},"\u0001\"é":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}"#;

    fn header() -> Header {
        let size = 8 + JSON.len() as u64 + 5;
        Header::parse(JSON.as_bytes(), size, Strictness::Strict).expect("a header")
    }

    fn subject(header: &Header) -> Subject<'_> {
        Subject { path: Path::new("/f"), header, file_bytes: header.data_start + 5 }
    }

    fn details(errors: Vec<Error>) -> Vec<ChecksumFailure> {
        let detail = |error| match error {
            Error::Checksum(failure) => *failure,
            other => panic!("{other}"),
        };
        errors.into_iter().map(detail).collect()
    }

    fn good() -> String {
        text(&header(), header().data_start + 5, &[1, 2, 3, 4])
    }

    #[test]
    fn spans_are_the_header_and_the_tensors_and_leave_nothing_out() {
        let header = header();
        let start = header.data_start;
        assert_eq!(span_ends(&header), [start, start + 3, start + 3, start + 5]);
    }

    #[test]
    fn written_checksums_are_read_back() {
        let (header, text) = (header(), good());
        let found = Checksums::parse(text.as_bytes(), &header).expect("ours");
        assert_eq!(found.failures(subject(&header), &[1, 2, 3, 4]), []);
        assert_eq!(found.failures(subject(&header), &[1]), []);
        assert!(text.contains("  \"\\u0001\\\"é\": \"00000000000000000000000000000004\"\n }\n}\n"), "{text}");
        assert!(text.len() as u64 <= max_bytes(&header));
    }

    #[test]
    fn each_difference_is_named() {
        let header = header();
        let found = Checksums::parse(good().as_bytes(), &header).expect("ours");
        let of = Subject { file_bytes: 7, ..subject(&header) };
        let failures = details(found.failures(of, &[9, 2, 3, 5]));
        let named: Vec<_> =
            failures.iter().map(|failure| (failure.name.as_deref(), failure.offset)).collect();
        assert_eq!(
            named,
            [(None, Some(0)), (None, Some(0)), (Some("\u{1}\"é"), Some(header.data_start + 3))]
        );
        assert_eq!(failures[2].expected.as_deref(), Some("00000000000000000000000000000004"));
        assert_eq!(failures[2].found.as_deref(), Some("00000000000000000000000000000005"));
    }

    #[test]
    fn names_that_are_not_in_both_are_failures() {
        let header = header();
        let text = good().replace("\"b\"", "\"c\"");
        let found = Checksums::parse(text.as_bytes(), &header).expect("valid");
        let failures = details(found.failures(subject(&header), &[1, 2, 3, 4]));
        let named: Vec<_> = failures.iter().map(|failure| failure.name.as_deref()).collect();
        assert_eq!(named, [Some("b"), Some("c")]);
    }

    #[test]
    fn bad_texts_are_refused() {
        let good = good();
        let cases: &[(&str, &str, &str)] = &[
            ("", "x", "expected value"),
            ("{\n", "[{\n", "expected an object with checksums"),
            ("}\n}\n", "}\n}\n{}", "trailing characters"),
            ("}\n}\n", "}\n", "EOF"),
            ("pagestream-checksums", "pagestream", "`format` is \"pagestream\""),
            ("\"version\": 1", "\"version\": 2", "`version` is 2, expected 1"),
            ("\"version\": 1", "\"version\": 1.0", "expected a whole number"),
            ("\"version\": 1", "\"version\": \"1\"", "expected a whole number"),
            ("\"version\": 1", "\"version\": null", "expected a whole number"),
            ("\"version\": 1", "\"version\": 1, \"version\": 1", "duplicate field \"version\""),
            ("\"version\": 1", "\"size\": 1", "unknown field \"size\""),
            (" \"version\": 1,\n", "", "missing field `version`"),
            ("xxh3-128", "md5", "`algorithm` is \"md5\", expected \"xxh3-128\""),
            ("\"file_bytes\": ", "\"file_bytes\": -", "expected a whole number"),
            ("\"file_bytes\": ", "\"file_bytes\": 99999999999999999999", "expected a whole number"),
            ("\"file_bytes\": ", "\"file_bytes\": 1e400, \"x\": ", "number out of range"),
            ("\"header\": \"0", "\"header\": \"", "32 hexadecimal digits"),
            ("\"header\": \"0", "\"header\": \"00", "32 hexadecimal digits"),
            ("\"header\": \"0", "\"header\": \"+", "32 hexadecimal digits"),
            ("\"header\": \"0", "\"header\": \"A", "32 hexadecimal digits"),
            ("\"b\": \"0", "\"b\": \"é", "the checksum of \"b\""),
            ("\"b\": ", "\"b\": 7, \"c\": ", "expected a checksum"),
            ("\"b\": ", "\"b\": [[[[]]]], \"c\": ", "expected a checksum"),
            ("\"a\"", "\"b\"", "duplicate tensor \"b\""),
            ("\"tensors\": {", "\"tensors\": [], \"x\": {", "`tensors` to be an object"),
            ("\"b\"", "\"\\ud800\"", "hex escape"),
        ];
        for (old, new, expected) in cases {
            let text = good.replacen(old, new, 1);
            let refused = Checksums::parse(text.as_bytes(), &header()).expect_err(new);
            assert!(refused.detail.contains(expected), "{new}: {}", refused.detail);
            assert!(refused.offset.is_some_and(|offset| offset <= text.len() as u64), "{new}: {refused:?}");
        }
        let text = good.replace("\"b\"", "\"x\"").replace("\"a\"", "\"x\"");
        let refused = Checksums::parse(text.as_bytes(), &header()).expect_err("twice");
        assert!(refused.detail.contains("duplicate tensor \"x\""), "{}", refused.detail);
        let refused = Checksums::parse(b"{\"\xff\": 1}", &header()).expect_err("no text");
        assert_eq!(refused.offset, Some(2));
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]
        #[test]
        fn a_changed_text_is_rejected_or_has_failures(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let (header, good) = (header(), good());
            let mut bytes = good.clone().into_bytes();
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            match Checksums::parse(&bytes, &header) {
                Err(refused) => prop_assert!(refused.offset.is_none_or(|at| at <= bytes.len() as u64)),
                Ok(found) => {
                    let is_same = found == Checksums::parse(good.as_bytes(), &header).expect("ours");
                    prop_assert_eq!(is_same, found.failures(subject(&header), &[1, 2, 3, 4]).is_empty());
                }
            }
        }
    }
}
