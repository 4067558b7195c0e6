//! Parts of a corpus, compared with slices of the whole corpus.

use std::sync::Arc;

use pagestream::internals::{
    Dtype, Element, Error, RequestedMode, Target, TokenCorpus, Uninit, Windows, assemble,
};
use proptest::prelude::*;

use crate::tokens_corpus::{MODES, corpus};

fn read(corpus: &TokenCorpus, start: u64, stop: u64) -> Vec<u64> {
    let mut bytes = vec![0; 2 * (stop - start) as usize];
    corpus.read_into(start, stop, Uninit::of(&mut bytes)).expect("read");
    bytes.as_chunks::<2>().0.iter().map(|token| u64::from(u16::from_le_bytes(*token))).collect()
}

/// Lengths of files, a range on their axis, and a range within that range.
fn files_and_ranges() -> impl Strategy<Value = (Vec<usize>, (u64, u64), (u64, u64))> {
    prop::collection::vec(prop_oneof![1 => Just(0), 3 => 1_usize..9], 1..8).prop_flat_map(|lengths| {
        let total = lengths.iter().sum::<usize>() as u64;
        (Just(lengths), 0..=total, 0..=total).prop_flat_map(|(lengths, a, b)| {
            let (start, stop) = (a.min(b), a.max(b));
            let inner = (0..=stop - start, 0..=stop - start).prop_map(|(a, b)| (a.min(b), a.max(b)));
            (Just(lengths), Just((start, stop)), inner)
        })
    })
}

proptest! {
    #![proptest_config(crate::cases(100))]

    #[test]
    fn a_part_of_a_part_has_the_tokens_of_its_range(
        (lengths, (start, stop), (inner_start, inner_stop)) in files_and_ranges(),
        mode in prop::sample::select(&MODES[..]),
    ) {
        // Each token equals its position.
        let (_folder, whole) = corpus(&lengths, mode);
        let outer = whole.part(start, stop).expect("inside");
        prop_assert_eq!(read(&outer, 0, outer.len()), (start..stop).collect::<Vec<_>>());
        let part = outer.part(inner_start, inner_stop).expect("inside");
        let expected: Vec<u64> = (start + inner_start..start + inner_stop).collect();
        prop_assert_eq!(part.len(), expected.len() as u64);
        for first in 0..=part.len() {
            for last in first..=part.len() {
                prop_assert_eq!(&read(&part, first, last), &expected[first as usize..last as usize]);
            }
        }
        for shard in &part.shards {
            let first = part.shards[0].file_start;
            prop_assert!(shard.file_start + shard.layout.tokens <= shard.file_tokens);
            prop_assert!(shard.file_start == 0 || (shard.start, shard.file_start) == (0, first));
        }
    }

    #[test]
    fn windows_of_a_part_are_those_that_lie_within_it(
        (lengths, (start, stop), _) in files_and_ranges(),
        length in 1_u64..5,
    ) {
        let (_folder, whole) = corpus(&lengths, RequestedMode::Auto);
        let part = Arc::new(whole.part(start, stop).expect("inside"));
        let Ok(windows) = Windows::new(part.len(), length, 1, Target::Shift) else {
            prop_assert!(stop - start <= length);
            return Ok(());
        };
        let indices: Vec<u64> = (0..windows.count()).collect();
        let bytes = 8 * indices.len() * length as usize;
        let (mut x, mut y) = (vec![0; bytes], vec![0; bytes]);
        let rows = (Uninit::of(&mut x), Some(Uninit::of(&mut y)));
        assemble(&part, &windows, &indices, Element::I64, None, rows.0, rows.1).expect("good");
        let found = |bytes: &[u8]| -> Vec<u64> {
            bytes.as_chunks::<8>().0.iter().map(|token| u64::from_ne_bytes(*token)).collect()
        };
        let expected = |shift: u64| -> Vec<u64> {
            indices.iter().flat_map(|index| (0..length).map(move |at| start + index + at + shift)).collect()
        };
        prop_assert_eq!(found(&x), expected(0));
        prop_assert_eq!(found(&y), expected(1));
    }
}

#[test]
fn a_part_outside_the_corpus_is_refused() {
    let (_folder, whole) = corpus(&[3, 4], RequestedMode::Auto);
    for (start, stop) in [(0, 8), (5, 4), (8, 8), (0, u64::MAX)] {
        let refused = whole.part(start, stop).map(|part| part.len());
        assert!(matches!(refused, Err(Error::Index { .. })), "{refused:?}");
    }
}

#[test]
fn parts_close_separately_and_the_last_one_closes_the_files() {
    let (_folder, whole) = corpus(&[3, 4], RequestedMode::Auto);
    let (left, right) = (whole.part(0, 2).expect("inside"), whole.part(2, 7).expect("inside"));
    left.close();
    left.close();
    assert!(left.is_closed() && matches!(left.check(), Err(Error::Closed { .. })));
    assert!(matches!(left.part(0, 1), Err(Error::Closed { .. })));
    whole.close();
    assert!(matches!(whole.opened(0), Err(Error::Closed { .. })));
    assert_eq!((read(&right, 0, 5), right.open_count()), (vec![2, 3, 4, 5, 6], 2));
    right.check().expect("open");
    right.close();
    assert_eq!((right.is_closed(), right.open_count()), (true, 0));
}

#[test]
fn a_part_that_is_dropped_no_longer_keeps_the_files_open() {
    let (_folder, whole) = corpus(&[3], RequestedMode::Auto);
    drop(whole.part(0, 2).expect("inside"));
    assert_eq!(whole.open_count(), 1);
    whole.close();
    assert_eq!(whole.open_count(), 0);
}

#[test]
fn a_part_has_its_own_fingerprint() {
    let (_folder, whole) = corpus(&[4000, 3000], RequestedMode::Auto);
    let fingerprint = |start, stop| {
        let part = whole.part(start, stop).expect("inside");
        part.fingerprint().expect("read")
    };
    assert_eq!(fingerprint(0, 7000), whole.fingerprint().expect("read"));
    let mut seen: Vec<u64> =
        [(0, 7000), (0, 6999), (0, 4000), (1, 4000), (0, 3999), (4000, 7000), (3999, 7000)]
            .map(|(start, stop)| fingerprint(start, stop))
            .to_vec();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 7);
}

#[test]
fn equal_tokens_at_two_places_of_a_file_have_two_fingerprints() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("zeros.bin");
    std::fs::write(&path, [0; 200]).expect("written");
    let whole = TokenCorpus::open(&[path], Some(Dtype::U16), None, RequestedMode::Auto).expect("opened");
    let fingerprint =
        |start| whole.part(start, start + 10).and_then(|part| part.fingerprint()).expect("read");
    assert_ne!(fingerprint(0), fingerprint(20));
}
