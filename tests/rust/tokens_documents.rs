//! The starts of documents, compared with a naive reader of the index.

use pagestream::internals::{Dtype, Error, Format, RequestedMode, TokenCorpus};
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

/// Writes a Megatron pair of uint16 tokens. Each document is a list of sequence lengths.
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

/// Writes datatrove's tokens and ends.
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

/// Returns the start of each document of all shards, and the end.
fn oracle(shards: &[Vec<Vec<i32>>]) -> Vec<u64> {
    let mut bounds = vec![0];
    let mut end = 0;
    for document in shards.concat() {
        end += document.iter().map(|&length| length as u64).sum::<u64>();
        bounds.push(end);
    }
    bounds
}

/// Returns the documents of a part as `(start, stop)`, relative to its beginning. An empty document belongs to the part
/// in which it begins. At the end of a file, it belongs to the part with the last token of the file.
fn oracle_of_part(shards: &[Vec<Vec<i32>>], start: u64, stop: u64) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = 0;
    for shard in shards {
        let file = (at, at + shard.iter().flatten().map(|&length| length as u64).sum::<u64>());
        let (low, high) = (start.max(file.0), stop.min(file.1));
        let is_inner_and_empty = file.0 == file.1 && start < file.0 && file.0 < stop;
        for document in shard {
            let first = at;
            at += document.iter().map(|&length| length as u64).sum::<u64>();
            let is_inside = low < high
                && if first < at {
                    first < high && low < at
                } else {
                    (low..high).contains(&first) || (high, first) == (file.1, file.1)
                };
            if is_inside || is_inner_and_empty {
                found.push((first.max(low) - start, at.min(high) - start));
            }
        }
    }
    found
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

    #[test]
    fn documents_of_a_part_are_those_of_the_whole_cut_at_its_ends(shards in shards(), megatron: bool) {
        let format = if megatron { Format::Megatron } else { Format::Datatrove };
        let (_folder, whole) = corpus(&shards, format);
        for start in 0..=whole.len() {
            for stop in start..=whole.len() {
                if (start, stop) == (0, whole.len()) {
                    continue;
                }
                let part = whole.part(start, stop).expect("good");
                // A part of a part that keeps tokens before it gives the same documents.
                let from_zero = whole.part(0, stop).and_then(|left| left.part(start, stop)).expect("good");
                let expected = oracle_of_part(&shards, start, stop);
                for part in [part, from_zero] {
                    prop_assert_eq!(part.document_count, Some(expected.len() as u64), "{} to {}", start, stop);
                    let mut bounds = vec![u64::MAX; expected.len() + 1];
                    part.document_bounds(0, &mut bounds).expect("good");
                    let firsts: Vec<u64> = expected.iter().map(|document| document.0).collect();
                    prop_assert_eq!(&bounds[..expected.len()], &firsts, "{} to {}", start, stop);
                    prop_assert_eq!(bounds[expected.len()], stop - start);
                    let mut places: Vec<u64> =
                        firsts.into_iter().filter(|&at| 0 < at && at < stop - start).collect();
                    places.dedup();
                    prop_assert_eq!(part.document_starts(0, part.len()).expect("good"), places);
                }
            }
        }
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
