//! Gives the same bytes to this reader and to the `safetensors` crate.

use pagestream::internals::{Dtype, Header, HeaderError, HeaderErrorKind, Strictness};
use std::cell::Cell;
use std::collections::HashMap;

use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use safetensors::SafeTensors;
use safetensors::tensor::{Metadata, TensorView, serialize};

use super::parse;

/// The number of mutations in each run of the tests. Each of the eight kinds of mutation occurs thousands of times. The
/// stress test makes ten times this number, with other files.
const MUTATIONS: u32 = 20_000;
const STRESS_MUTATIONS: u32 = 200_000;

/// Returns whether the strict reader may refuse a file that upstream accepts: rows 11, 12, 34, 7, 16 and 37 of the
/// table in `cases.rs`.
fn is_listed(error: &HeaderError) -> bool {
    let types = ["invalid type: null", "invalid type: sequence", "invalid type: map"];
    match error.kind {
        HeaderErrorKind::Duplicate | HeaderErrorKind::InvalidName => true,
        HeaderErrorKind::InvalidJson | HeaderErrorKind::UnknownDtype => {
            types.iter().any(|words| error.detail.contains(words))
        }
        _ => false,
    }
}

/// Asserts that both readers accept the file and read the same, or both refuse it. The strict reader accepts only files
/// that the crate accepts, and refuses more than the crate only for the listed reasons. Returns whether the strict
/// reader and the crate accept.
pub(super) fn assert_agrees(file: &[u8]) -> (bool, bool) {
    let shown = || String::from_utf8_lossy(file).into_owned();
    let upstream = SafeTensors::read_metadata(file);
    let accepts = |strictness| match (parse(file, strictness), &upstream) {
        (Ok(header), Ok((length, metadata))) => {
            assert_eq!(header.data_start, 8 + *length as u64);
            assert_same(&header, metadata);
            true
        }
        (Ok(_), Err(error)) => panic!("{strictness:?} accepts what is refused: {error}: {}", shown()),
        (Err(error), Ok(_)) if strictness == Strictness::Upstream || !is_listed(&error) => {
            panic!("{strictness:?} refuses what is accepted: {error}: {}", shown())
        }
        (Err(_), _) => false,
    };
    (accepts(Strictness::Strict), accepts(Strictness::Upstream))
}

fn assert_same(header: &Header, expected: &Metadata) {
    let metadata = header.metadata().map(|pairs| pairs.map(|(k, v)| (k.into(), v.into())).collect());
    assert_eq!(&metadata, expected.metadata());
    let tensors = expected.tensors();
    assert_eq!(header.len(), tensors.len());
    for tensor in header.tensors() {
        let info = tensors[tensor.name];
        assert_eq!(tensor.dtype.name(), info.dtype.to_string());
        assert!(tensor.shape.iter().eq(info.shape.iter().map(|&d| d as u64).collect::<Vec<_>>().iter()));
        let begin = (tensor.offset - header.data_start) as usize;
        assert_eq!((begin, begin + tensor.len as usize), info.data_offsets);
        assert_eq!(header.tensor(tensor.name), Some(tensor));
    }
    assert!(header.tensors().is_sorted_by_key(|tensor| tensor.name));
    assert!(header.tensors_by_offset().is_sorted_by_key(|tensor| (tensor.offset, tensor.len, tensor.name)));
}

#[derive(Debug, Clone)]
struct Model {
    tensors: HashMap<String, (Dtype, Vec<usize>)>,
    metadata: Option<HashMap<String, String>>,
}

impl Model {
    fn to_file(&self) -> Vec<u8> {
        let data = vec![0; 4096];
        let views = self.tensors.iter().map(|(name, (dtype, shape))| {
            let name_in_json = format!("\"{dtype}\"");
            let upstream = serde_json::from_str(&name_in_json).expect("upstream has each dtype");
            let bytes = shape.iter().product::<usize>() * dtype.bits() as usize / 8;
            (name, TensorView::new(upstream, shape.clone(), &data[..bytes]).expect("whole bytes"))
        });
        serialize(views, self.metadata.clone()).expect("serializable")
    }
}

/// The last dimension is a multiple of 4, so that elements of 4 and 6 bits fill whole bytes.
fn shape() -> impl Strategy<Value = Vec<usize>> {
    (vec(0..4_usize, 0..3), 0..3_usize).prop_map(|(mut shape, last)| {
        shape.push(last * 4);
        shape
    })
}

fn string() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..4).prop_map(String::from_iter)
}

fn model() -> impl Strategy<Value = Model> {
    let name =
        prop_oneof![4 => select(&["", "a", "b", "ab", "é"][..]).prop_map(str::to_owned), 1 => string()]
            .prop_filter("reserved", |n| n != "__metadata__");
    let tensors = hash_map(name, (select(Dtype::ALL), shape()), 0..5);
    // Upstream writes broken JSON for an empty set of tensors with empty metadata.
    let metadata =
        proptest::option::of(hash_map(select(&["k", "l", "\n"][..]).prop_map(str::to_owned), string(), 1..3));
    (tensors, metadata).prop_map(|(tensors, metadata)| Model { tensors, metadata })
}

/// Words on the border between valid and invalid.
const WORDS: &[&str] = &[
    "null",
    "-0",
    "0",
    "1",
    "4",
    "1e0",
    "1.0",
    "01",
    "-1",
    "1e400",
    "18446744073709551616",
    "\"U8\"",
    "\"F32\"",
    "\"f32\"",
    "{\"U8\":null}",
    "{}",
    "[]",
    "[0,4]",
    "[1]",
    ",",
    ":",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    " ",
    "\n",
    "\0",
    "\\u0061",
    "\\ud800",
    "\\u0000",
    "\u{feff}",
];

/// Fields that may come first in an object.
const FIELDS: &[&str] = &[
    r#""a":["U8",[0],[0,0]],"#,
    r#""a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"#,
    r#""\u0062":{"dtype":{"U8":null},"shape":[0],"data_offsets":[0,0]},"#,
    r#""nul\u0000":{"shape":[0],"data_offsets":[0,0],"dtype":"F4","x":[1.5,"y"]},"#,
    r#""a":["U8",[0],[0,0],0],"#,
    r#""a":"1","#,
    r#""__metadata__":null,"#,
    r#""__metadata__":{"a":"1","a":"2"},"#,
    r#""shape":[0],"#,
    r#""x":1e400,"#,
    r#""x":[{"y":"\ud800"}],"#,
    r#""x":[{"y":-0.5}],"#,
];

#[derive(Debug, Clone)]
enum Mutation {
    Insert(Index, &'static str),
    InsertField(Index, &'static str),
    /// Replaces one word, number or punctuation mark.
    ReplaceToken(Index, &'static str),
    Flip(Index, u8),
    Delete(Index),
    Copy(Index, Index, Index),
    Length(i64),
    Data(isize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    let word = || select(WORDS);
    prop_oneof![
        1 => (at(), word()).prop_map(|(a, p)| Mutation::Insert(a, p)),
        4 => (at(), select(FIELDS)).prop_map(|(a, p)| Mutation::InsertField(a, p)),
        4 => (at(), word()).prop_map(|(a, p)| Mutation::ReplaceToken(a, p)),
        1 => (at(), any::<u8>()).prop_map(|(a, b)| Mutation::Flip(a, b)),
        1 => at().prop_map(Mutation::Delete),
        1 => (at(), at(), at()).prop_map(|(a, b, c)| Mutation::Copy(a, b, c)),
        1 => prop_oneof![-9..9_i64, any::<i64>()].prop_map(Mutation::Length),
        1 => (-9..9_isize).prop_map(Mutation::Data),
    ]
}

/// The JSON and the data of a file, with a length that may be wrong.
struct Parts {
    json: Vec<u8>,
    data: usize,
    length_error: i64,
}

impl Parts {
    fn of(file: &[u8]) -> Self {
        let length = u64::from_le_bytes(*file.first_chunk().expect("8 bytes")) as usize;
        Self { json: file[8..8 + length].to_vec(), data: file.len() - 8 - length, length_error: 0 }
    }

    fn to_file(&self) -> Vec<u8> {
        let mut file = super::file(&self.json, self.data);
        let length = (self.json.len() as u64).wrapping_add_signed(self.length_error);
        file[..8].copy_from_slice(&length.to_le_bytes());
        file
    }

    fn splice(&mut self, start: usize, removed: usize, piece: &[u8]) {
        let end = (start + removed).min(self.json.len());
        self.json.splice(start.min(end)..end, piece.iter().copied());
    }

    fn apply(&mut self, mutation: &Mutation) {
        let at = |index: &Index| index.index(self.json.len() + 1);
        match mutation {
            Mutation::Insert(index, piece) => self.splice(at(index), 0, piece.as_bytes()),
            Mutation::InsertField(index, piece) => {
                let objects: Vec<_> = (0..self.json.len()).filter(|&i| self.json[i] == b'{').collect();
                let position = if objects.is_empty() { 0 } else { index.get(&objects) + 1 };
                self.splice(position, 0, piece.as_bytes());
            }
            Mutation::ReplaceToken(index, piece) => {
                let (start, length) = token(&self.json, at(index));
                self.splice(start, length, piece.as_bytes());
            }
            Mutation::Flip(index, bits) => {
                let position = at(index);
                if let Some(byte) = self.json.get_mut(position) {
                    *byte ^= bits;
                }
            }
            Mutation::Delete(index) => self.splice(at(index), 1, &[]),
            Mutation::Copy(from, to, into) => {
                let (from, to) = (at(from), at(to));
                let piece = self.json[from.min(to)..from.max(to)].to_vec();
                self.splice(at(into), 0, &piece);
            }
            Mutation::Length(error) => self.length_error = *error,
            Mutation::Data(change) => self.data = self.data.saturating_add_signed(*change),
        }
    }
}

/// Returns the start and length of the run of letters and digits, or of the single byte, at a position.
fn token(json: &[u8], position: usize) -> (usize, usize) {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b'"';
    let before = json[..position].iter().rev().take_while(|&byte| is_word(byte)).count();
    let after = json[position..].iter().take_while(|&byte| is_word(byte)).count();
    if after == 0 { (position, 1) } else { (position - before, before + after) }
}

fn deterministic_runner(cases: u32) -> TestRunner {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn valid_files_read_the_same() {
    let runs = deterministic_runner(1000).run(&model(), |model| {
        let has_nul = model.tensors.keys().any(|name| name.contains('\0'));
        prop_assert_eq!(assert_agrees(&model.to_file()), (!has_nul, true));
        Ok(())
    });
    runs.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn mutated_files_are_judged_the_same() {
    judge_mutated_files(deterministic_runner(MUTATIONS), MUTATIONS);
}

#[test]
#[ignore = "random: `cargo test -- --ignored stress`"]
fn stress_mutated_files_are_judged_the_same() {
    let config =
        ProptestConfig { cases: STRESS_MUTATIONS, failure_persistence: None, ..ProptestConfig::default() };
    judge_mutated_files(TestRunner::new(config), STRESS_MUTATIONS);
}

fn judge_mutated_files(mut runner: TestRunner, mutations: u32) {
    let (accepted, only_by_upstream) = (Cell::new(0), Cell::new(0));
    let files = (model(), vec(mutation(), 1..3));
    let runs = runner.run(&files, |(model, mutations)| {
        let mut parts = Parts::of(&model.to_file());
        for mutation in &mutations {
            parts.apply(mutation);
        }
        let (strict, upstream) = assert_agrees(&parts.to_file());
        accepted.set(accepted.get() + u32::from(upstream));
        only_by_upstream.set(only_by_upstream.get() + u32::from(upstream && !strict));
        Ok(())
    });
    runs.unwrap_or_else(|failure| panic!("{failure}"));
    // The mutations are useful only near the border between valid and invalid.
    let (accepted, only_by_upstream) = (accepted.get(), only_by_upstream.get());
    assert!(accepted > mutations / 10 && accepted < mutations / 2, "{accepted} accepted");
    assert!(only_by_upstream > mutations / 100, "{only_by_upstream} accepted only by upstream");
}
