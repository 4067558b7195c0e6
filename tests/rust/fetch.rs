//! Joined ranges, pages of batches and budgets, each compared with a naive model.

use pagestream::internals::{
    BatchRow, Budget, ByteRange, Feed, FileId, Merge, MergeRule, Order, RequestedMode, Share, StreamExtent,
    Target, TokenSource, Windows, page_bytes,
};
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::tokens_corpus::corpus;

/// Ranges of up to three files, sorted by file and offset. They are not empty, and may touch or overlap.
fn ranges() -> impl Strategy<Value = Vec<ByteRange>> {
    let one = (0_usize..3, 0_u64..200, 1_u64..40).prop_map(|(index, offset, len)| ByteRange {
        file: FileId { set: 0, index },
        offset,
        len,
    });
    prop::collection::vec(one, 0..30).prop_map(|mut ranges| {
        ranges.sort_unstable();
        ranges
    })
}

fn bytes_of(ranges: impl IntoIterator<Item = ByteRange>) -> BTreeSet<(FileId, u64)> {
    ranges
        .into_iter()
        .flat_map(|range| (range.offset..range.end()).map(move |byte| (range.file, byte)))
        .collect()
}

proptest! {
    #![proptest_config(crate::cases(2000))]

    #[test]
    fn joined_ranges_are_the_parts_and_the_gaps_that_the_rule_allows(
        parts in ranges(),
        gap_bytes in prop_oneof![Just(0_u64), Just(1), 2..30_u64],
        max_bytes in prop_oneof![Just(u64::MAX), 1..100_u64],
    ) {
        let rule = MergeRule { gap_bytes, max_bytes };
        let merged: Vec<_> = Merge::new(parts.iter().copied(), rule).collect();
        // The merged ranges contain each part once, in the original order.
        let served = merged.iter().flat_map(|found| std::iter::once(found.first).chain(found.others.iter().copied()));
        prop_assert_eq!(served.collect::<Vec<_>>(), parts.clone());
        let mut wanted = bytes_of(parts.iter().copied());
        for found in &merged {
            prop_assert!(found.others.is_empty() || found.range.len <= max_bytes);
            let own = bytes_of(std::iter::once(found.first).chain(found.others.iter().copied()));
            let gaps: Vec<u64> = bytes_of([found.range]).difference(&own).map(|(_, byte)| *byte).collect();
            // Every unwanted run inside a range is shorter than an unread gap.
            let runs = gaps.chunk_by(|first, second| first + 1 == *second).map(|run| run.len() as u64);
            prop_assert!(runs.max().is_none_or(|longest| longest < gap_bytes));
            wanted.retain(|byte| !own.contains(byte));
        }
        prop_assert!(wanted.is_empty());
        // All ranges that may be joined are joined.
        for pair in merged.windows(2) {
            prop_assert_eq!(rule.join(pair[0].range, pair[1].first), None);
        }
    }

    #[test]
    fn pieces_are_the_range(offset in 0_u64..1000, len in 0_u64..1000, max_bytes in 1_u64..300) {
        let range = ByteRange { file: FileId::default(), offset, len };
        let pieces: Vec<_> = range.pieces(max_bytes).collect();
        prop_assert!(pieces.iter().all(|piece| (1..=max_bytes).contains(&piece.len)));
        prop_assert_eq!(pieces.len() as u64, len.div_ceil(max_bytes));
        prop_assert!(pieces.windows(2).all(|pair| pair[0].end() == pair[1].offset));
        prop_assert_eq!(bytes_of(pieces), bytes_of([range]));
    }

    #[test]
    fn a_budget_is_a_limit_and_a_difference(
        first in 1_u64..20,
        most in 1_u64..200,
        steps in prop::collection::vec((0_usize..4, 1_u64..30), 0..60),
    ) {
        let mut budget = Budget::new(first, most);
        let (mut limit, mut in_flight) = (first, 0_i64);
        for (step, amount) in steps {
            match step {
                0 => { budget.take(amount); in_flight += amount as i64; }
                1 => { budget.give_back(amount); in_flight -= amount as i64; }
                2 => { budget.double(); limit = (limit * 2).min(most.max(first)); }
                _ => { budget.start_anew(); limit = first; }
            }
            prop_assert_eq!(budget.limit(), limit);
            prop_assert_eq!(budget.has_room(), in_flight < limit as i64);
            prop_assert_eq!(budget.is_half_used(), in_flight < limit.div_ceil(2) as i64);
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(100))]

    #[test]
    fn pages_of_a_batch_are_those_of_its_tokens(
        lengths in prop::collection::vec(1_usize..9000, 1..4),
        starts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        length in 1_u64..5000,
    ) {
        let (_folder, corpus) = corpus(&lengths, RequestedMode::Auto);
        let total = corpus.len();
        let length = length.min(total);
        let windows = Windows::new(total, length, 1, Target::None).expect("valid");
        let item_bytes = corpus.item_bytes();
        let firsts: Vec<u64> = corpus.shards.iter().map(|shard| shard.start).collect();
        let source = TokenSource { corpus, windows };
        let (share, extent) =
            (Share { rank: 0, world_size: 1, batch_size: 1 }, StreamExtent { end: None, drop_last: true });
        let feed = Feed::new(vec![source], None, Order::Sequential, 0, share, extent).expect("valid");
        let rows: Vec<BatchRow> = starts
            .iter()
            .map(|start| start.index((total - length + 1) as usize) as u64)
            .map(|start| BatchRow { source: 0, epoch: 0, start, stop: start + length })
            .collect();
        let page = page_bytes() as u64;
        let mut pages = BTreeSet::new();
        for token in rows.iter().flat_map(|row| row.start..row.stop) {
            // In raw files, the bytes of tokens follow one another from the first token of their shard.
            let shard = firsts.partition_point(|first| *first <= token) - 1;
            let byte = (token - firsts[shard]) * item_bytes;
            pages.extend([(shard, byte / page), (shard, (byte + item_bytes - 1) / page)]);
        }
        let found = feed.page_ranges(&rows).expect("valid");
        let found_pages: Vec<(usize, u64)> = found
            .iter()
            .flat_map(|range| (range.offset / page..range.end() / page).map(|number| (range.file.index, number)))
            .collect();
        prop_assert_eq!(found_pages, pages.into_iter().collect::<Vec<_>>());
        // Neighbouring ranges are joined.
        prop_assert!(found.windows(2).all(|pair| pair[0].file != pair[1].file || pair[0].end() < pair[1].offset));
    }
}
