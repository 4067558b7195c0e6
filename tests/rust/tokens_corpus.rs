//! Token files as one axis: the pieces of files that make up a range.

use pagestream::internals::{Dtype, Error, Piece, RequestedMode, TokenCorpus, Uninit};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;

pub const MODES: [RequestedMode; 3] = [RequestedMode::Auto, RequestedMode::Private, RequestedMode::Read];

/// Writes files of these lengths, which together hold the tokens `0, 1, 2, …` as uint16. Dropping the first return
/// value removes their folder.
pub fn corpus(lengths: &[usize], mode: RequestedMode) -> (TempDir, Arc<TokenCorpus>) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut next = 0_u16;
    let paths: Vec<PathBuf> = lengths
        .iter()
        .enumerate()
        .map(|(number, &length)| {
            let path = folder.path().join(number.to_string());
            let tokens = next..next + length as u16;
            next = tokens.end;
            fs::write(&path, tokens.flat_map(u16::to_le_bytes).collect::<Vec<_>>()).expect("written");
            path
        })
        .collect();
    let corpus = TokenCorpus::open(&paths, Some(Dtype::U16), None, mode).expect("opened");
    (folder, Arc::new(corpus))
}

/// Returns the expected tokens of a range, one by one: (file, its token).
fn oracle(lengths: &[usize], start: u64, stop: u64) -> Vec<(usize, u64)> {
    let all = lengths.iter().enumerate();
    let all: Vec<_> =
        all.flat_map(|(shard, &length)| (0..length as u64).map(move |at| (shard, at))).collect();
    all[start as usize..stop as usize].to_vec()
}

/// Lengths of files, and a range on their axis.
fn files_and_range() -> impl Strategy<Value = (Vec<usize>, u64, u64)> {
    prop::collection::vec(prop_oneof![1 => Just(0), 3 => 1_usize..9], 1..8).prop_flat_map(|lengths| {
        let total = lengths.iter().sum::<usize>() as u64;
        (Just(lengths), 0..=total, 0..=total).prop_map(|(lengths, a, b)| (lengths, a.min(b), a.max(b)))
    })
}

proptest! {
    #![proptest_config(crate::cases(100))]

    #[test]
    fn pieces_are_the_range_in_order_and_lie_inside_their_files((lengths, start, stop) in files_and_range()) {
        let (_folder, corpus) = corpus(&lengths, RequestedMode::Auto);
        let pieces: Vec<Piece> =
            corpus.pieces(start, stop).and_then(Iterator::collect).expect("inside");
        for piece in &pieces {
            prop_assert!(piece.start <= piece.stop && piece.stop <= lengths[piece.shard] as u64, "{:?}", piece);
            prop_assert_eq!(corpus.byte_range(*piece), (2 * piece.start, 2 * (piece.stop - piece.start)));
        }
        prop_assert!(pieces.windows(2).all(|pair| pair[0].shard < pair[1].shard), "{:?}", pieces);
        let tokens = pieces.iter().flat_map(|piece| (piece.start..piece.stop).map(|at| (piece.shard, at)));
        prop_assert_eq!(tokens.collect::<Vec<_>>(), oracle(&lengths, start, stop));
    }

    #[test]
    fn reading_gives_the_tokens_of_the_range((lengths, start, stop) in files_and_range(), mode in 0_usize..3) {
        let (_folder, corpus) = corpus(&lengths, MODES[mode]);
        let mut out = vec![0xAA; 2 * (stop - start) as usize];
        corpus.read_into(start, stop, Uninit::of(&mut out)).expect("read");
        let expected: Vec<u8> = (start as u16..stop as u16).flat_map(u16::to_le_bytes).collect();
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn there_is_a_view_exactly_of_what_one_mapped_file_holds(
        (lengths, start, stop) in files_and_range(), mode in 0_usize..3
    ) {
        let (_folder, corpus) = corpus(&lengths, MODES[mode]);
        let view = corpus.view(start, stop).expect("inside");
        let mut shards: Vec<_> = oracle(&lengths, start, stop).into_iter().map(|(shard, _)| shard).collect();
        shards.dedup();
        if let Some(view) = &view {
            prop_assert_eq!(view.len() as u64, 2 * (stop - start));
        }
        // An empty range may have one shard or none.
        if !shards.is_empty() {
            let mapped = MODES[mode] != RequestedMode::Read;
            prop_assert_eq!(view.is_some(), mapped && shards.len() == 1);
        }
    }
}

#[test]
fn a_range_outside_the_corpus_is_an_index_error() {
    let (_folder, corpus) = corpus(&[3, 0, 2], RequestedMode::Auto);
    for (start, stop) in [(0, 6), (6, 6), (4, 3), (0, u64::MAX), (u64::MAX, u64::MAX)] {
        let error = corpus.pieces(start, stop).map(Iterator::count).expect_err("refused");
        assert_eq!(error, Error::Index { detail: format!("tokens {start} to {stop} of a corpus of 5") });
    }
}

#[test]
fn starts_count_the_tokens_before() {
    let (_folder, corpus) = corpus(&[3, 0, 2, 1], RequestedMode::Auto);
    assert_eq!(corpus.shards.iter().map(|shard| shard.start).collect::<Vec<_>>(), [0, 3, 3, 5]);
    assert_eq!((corpus.len(), corpus.item_bytes()), (6, 2));
}

#[test]
fn a_corpus_needs_a_file() {
    let error = TokenCorpus::open(&[], None, None, RequestedMode::Auto).expect_err("refused");
    assert_eq!(error.message(), "no token files were given");
}
