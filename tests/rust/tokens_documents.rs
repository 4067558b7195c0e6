//! Where documents begin, against a naive reading of the index.

use pagestream::internals::{Dtype, Error, Format, RequestedMode, TokenCorpus};
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

/// A Megatron pair of uint16 tokens: documents of sequences of so many tokens.
fn write_megatron(stem: &Path, documents: &[Vec<i32>]) {
    let lengths: Vec<i32> = documents.concat();
    let mut index = b"MMIDIDX\0\0".to_vec();
    index.extend(1_u64.to_le_bytes());
    index.push(8);
    index.extend((lengths.len() as u64).to_le_bytes());
    index.extend((documents.len() as u64 + 1).to_le_bytes());
    index.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
    let mut end = 0_i64;
    for &length in &lengths {
        index.extend(end.to_le_bytes());
        end += 2 * i64::from(length);
    }
    let mut first = 0_i64;
    for document in documents {
        index.extend(first.to_le_bytes());
        first += document.len() as i64;
    }
    index.extend(first.to_le_bytes());
    fs::write(stem.with_extension("idx"), index).expect("written");
    fs::write(stem.with_extension("bin"), vec![7; end as usize]).expect("written");
}

/// datatrove's tokens and ends.
fn write_datatrove(path: &Path, documents: &[Vec<i32>]) {
    let mut end = 0_u64;
    let ends = documents.iter().flat_map(|document| {
        end += document.iter().map(|&length| length as u64).sum::<u64>();
        end.to_le_bytes()
    });
    fs::write(path.with_extension("ds.index"), ends.collect::<Vec<_>>()).expect("written");
    fs::write(path.with_extension("ds"), vec![7; 2 * end as usize]).expect("written");
}

fn corpus(shards: &[Vec<Vec<i32>>], format: Format) -> (TempDir, TokenCorpus) {
    let folder = tempfile::tempdir().expect("a folder");
    let paths: Vec<PathBuf> = (0..shards.len())
        .map(|number| {
            let stem = folder.path().join(number.to_string());
            if format == Format::Megatron {
                write_megatron(&stem, &shards[number]);
                stem
            } else {
                write_datatrove(&stem, &shards[number]);
                stem.with_extension("ds")
            }
        })
        .collect();
    let corpus =
        TokenCorpus::open(&paths, Some(Dtype::U16), Some(format), RequestedMode::Auto).expect("opened");
    (folder, corpus)
}

/// Where each document of all shards begins, and the end.
fn oracle(shards: &[Vec<Vec<i32>>]) -> Vec<u64> {
    let mut bounds = vec![0];
    let mut end = 0;
    for document in shards.concat() {
        end += document.iter().map(|&length| length as u64).sum::<u64>();
        bounds.push(end);
    }
    bounds
}

fn shards() -> impl Strategy<Value = Vec<Vec<Vec<i32>>>> {
    let length = prop_oneof![2 => Just(0), 3 => 1_i32..6];
    let document = prop::collection::vec(length, 0..3);
    prop::collection::vec(prop::collection::vec(document, 0..7), 1..5)
}

proptest! {
    #![proptest_config(crate::cases(60))]

    #[test]
    fn starts_within_a_range_are_those_of_the_oracle(shards in shards(), megatron: bool) {
        let format = if megatron { Format::Megatron } else { Format::Datatrove };
        let (_folder, corpus) = corpus(&shards, format);
        let bounds = oracle(&shards);
        prop_assert!(corpus.document_count.is_some());
        for start in 0..=corpus.len() {
            for stop in start..=corpus.len() {
                let mut expected: Vec<u64> =
                    bounds.iter().copied().filter(|&at| start < at && at < stop).collect();
                expected.dedup();
                let found = corpus.document_starts(start, stop).expect("good");
                prop_assert_eq!(&found, &expected, "{} to {}", start, stop);
            }
        }
    }

    #[test]
    fn bounds_are_those_of_the_oracle_from_any_document_on(shards in shards(), megatron: bool) {
        let format = if megatron { Format::Megatron } else { Format::Datatrove };
        let (_folder, corpus) = corpus(&shards, format);
        let bounds = oracle(&shards);
        prop_assert_eq!(corpus.document_count, Some(bounds.len() as u64 - 1));
        for first in 0..bounds.len() {
            let mut found = vec![u64::MAX; bounds.len() - first];
            corpus.document_bounds(first as u64, &mut found).expect("good");
            prop_assert_eq!(&found, &bounds[first..]);
        }
        let mut beyond = vec![0; 2];
        let refused = corpus.document_bounds(bounds.len() as u64 - 1, &mut beyond);
        prop_assert!(matches!(refused, Err(Error::Index { .. })), "{:?}", refused);
    }
}

#[test]
fn very_many_empty_documents_at_one_place_are_one_start() {
    let mut documents = vec![vec![3]];
    documents.extend(vec![vec![0]; 5000]);
    documents.push(vec![2]);
    let (_folder, corpus) = corpus(&[documents], Format::Megatron);
    assert_eq!(corpus.document_starts(0, 5).expect("good"), [3]);
}

#[test]
fn starts_of_several_files_are_told_and_ranges_outside_refused() {
    let (_folder, corpus) = corpus(&[vec![vec![3], vec![2]], vec![vec![4]]], Format::Megatron);
    assert_eq!(corpus.document_starts(0, 9).expect("good"), [3, 5]);
    assert_eq!(corpus.document_starts(4, 9).expect("good"), [5]);
    for (start, stop) in [(0, 10), (5, 4), (0, u64::MAX)] {
        let refused = corpus.document_starts(start, stop);
        assert!(matches!(refused, Err(Error::Index { .. })), "{refused:?}");
    }
}

#[test]
fn raw_files_have_no_documents() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.bin");
    fs::write(&path, [0; 8]).expect("written");
    let corpus = TokenCorpus::open(&[path], None, None, RequestedMode::Auto).expect("opened");
    assert!(corpus.document_count.is_none());
    let refused = corpus.document_starts(0, 4);
    assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
}
