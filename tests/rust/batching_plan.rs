//! The rows and pages of a batch.

use pagestream::internals::{
    BatchRow, ByteRange, Dtype, Feed, FileId, Order, RequestedMode, Share, StreamExtent, Target, TokenCorpus,
    TokenSource, Windows,
};
use std::sync::Arc;

/// Returns a feed over shards of 10,000 and 5,000 bytes of one-byte tokens.
fn feed(folder: &tempfile::TempDir, share: Share, extent: StreamExtent) -> Feed {
    let paths = [("a", 10_000), ("b", 5_000)].map(|(name, bytes)| {
        let path = folder.path().join(name);
        std::fs::write(&path, vec![0_u8; bytes]).expect("written");
        path
    });
    let dtype = Some(Dtype::U8);
    let corpus = TokenCorpus::open(&paths, dtype, None, RequestedMode::Auto).expect("opened");
    let windows = Windows::new(corpus.len(), 100, 100, Target::None).expect("valid");
    let sources = vec![TokenSource { corpus: Arc::new(corpus), windows }];
    Feed::new(sources, None, Order::Sequential, 0, share, extent).expect("valid")
}

const ALONE: Share = Share { rank: 0, world_size: 1, batch_size: 40 };

#[test]
fn rows_of_a_rank_and_the_end_of_the_stream() {
    let folder = tempfile::tempdir().expect("a folder");
    let share = Share { rank: 1, world_size: 4, batch_size: 16 };
    let extent = StreamExtent { end: Some(150), drop_last: false };
    let part = feed(&folder, share, extent);
    let plan = part.plan(64).expect("valid").expect("not the end");
    assert_eq!((plan.position, plan.global_rows), (64, 64));
    assert_eq!(plan.rows[0], BatchRow { source: 0, epoch: 0, start: 8000, stop: 8100 });
    // The remaining 22 rows are divided into 6, 6, 5 and 5.
    let last = part.plan(128).expect("valid").expect("not the end");
    assert_eq!((last.global_rows, last.rows.len(), last.rows[0].start), (22, 6, 13_400));
    assert_eq!((part.position_after(&plan), part.position_after(&last)), (128, 150));
    assert_eq!(part.plan(150).expect("valid"), None);
    let dropping = feed(&folder, share, StreamExtent { drop_last: true, ..extent });
    assert_eq!(dropping.plan(128).expect("valid"), None);
    // A dropped rest is not carried over to another batch size.
    let first = dropping.plan(0).expect("valid").expect("not the end");
    assert_eq!((dropping.position_after(&first), dropping.position_after(&plan)), (64, 150));
}

#[test]
fn pages_are_exact_merged_and_of_one_shard_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let feed = feed(&folder, ALONE, StreamExtent { end: None, drop_last: true });
    let range =
        |index, offset, end: u64| ByteRange { file: FileId { set: 0, index }, offset, len: end - offset };
    let of = |position| {
        let plan = feed.plan(position).expect("valid").expect("endless");
        feed.page_ranges(&plan.rows).expect("valid")
    };
    assert_eq!(of(0), [range(0, 0, 4096)]);
    // Windows 80 to 119 cover the last 2,000 tokens of the first shard and 2,000 of the second.
    assert_eq!(of(80), [range(0, 4096, 12_288), range(1, 0, 4096)]);
    // The batch has windows 130 to 149 and, in the next epoch, 0 to 19. Its ranges are sorted by shard, not by row.
    assert_eq!(of(130), [range(0, 0, 4096), range(1, 0, 8192)]);
}

#[test]
fn what_no_rank_can_have_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let alone = feed(&folder, ALONE, StreamExtent { end: None, drop_last: true });
    let new = |share| {
        let extent = StreamExtent { end: None, drop_last: true };
        Feed::new(alone.sources.clone(), None, Order::Shuffled, 0, share, extent).map(drop)
    };
    assert!(new(Share { rank: 1, ..ALONE }).is_err());
    assert!(new(Share { batch_size: 0, ..ALONE }).is_err());
    assert!(new(Share { world_size: 1 << 40, batch_size: 1 << 40, rank: 0 }).is_err());
    assert!(new(ALONE).is_ok());
}

#[test]
fn windows_whose_pages_touch_are_one_range() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a");
    std::fs::write(&path, vec![0_u8; 5 * 4096]).expect("written");
    let dtype = Some(Dtype::U8);
    let corpus = TokenCorpus::open(&[path], dtype, None, RequestedMode::Auto).expect("opened");
    let windows = Windows::new(corpus.len(), 4096, 4096, Target::None).expect("valid");
    let share = Share { rank: 0, world_size: 1, batch_size: 3 };
    let extent = StreamExtent { end: Some(5), drop_last: false };
    let sources = vec![TokenSource { corpus: Arc::new(corpus), windows }];
    let feed = Feed::new(sources, None, Order::Sequential, 0, share, extent).expect("valid");
    let plan = feed.plan(0).expect("valid").expect("not the end");
    let ranges = feed.page_ranges(&plan.rows).expect("valid");
    assert_eq!(ranges, [ByteRange { file: FileId::default(), offset: 0, len: 3 * 4096 }]);
}
