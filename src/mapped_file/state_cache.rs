//! [`StateCache`]: results of reading a file, kept while the file stays unchanged.
//!
//! The key of a result is the file's device, inode, size, modification time and ctime, as the server reports them when
//! the file is opened. This key misses a change that comes so soon after another that both get the same time (the
//! *racy* files of git's index). A result is therefore kept only if the file was [`SETTLED_SECONDS`] old before it was
//! read. Any later change then has another time, even on file systems that count in whole or even seconds. The age
//! depends on the clock:
//!
//! * A file on a disk of this machine has its times from the clock of this machine.
//! * Other files may have times from a server's clock, and that clock may be wrong. They are old if they seem to be
//!   older than any clock error ([`CLOCKS_APART_SECONDS`]), or if an earlier opening, more than [`SETTLED_SECONDS`]
//!   ago, found them in the same state.
//!
//! Some file systems have no ctime of their own, only whole seconds, and inode numbers that they reuse for other files
//! (FAT, SFTP). Two files of one size can look alike there, so no result of such a file is kept
//! ([`FileState::tells_apart`]).
//!
//! **Undetected changes.** A program that writes to a page through a shared mapping gives the file a new time at its
//! first write to that page, and perhaps not at later writes until the page is written back.
//!
//! ```text
//!            get_or_read ──(known state)──────────────────────────────────> result
//!                 └──(else)──> read ──(settled)──────> kept, until it is the least recently used
//!                                └───(not settled)───> state noted, with the moment
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::error::Result;
use crate::os::file::open::Identity;
use crate::os::process::fork;

/// Minimum age of a state: longer than the time step of the coarsest file system (FAT).
const SETTLED_SECONDS: i64 = 2;
/// Maximum difference between the clocks of two machines, even if one has the wrong time zone.
const CLOCKS_APART_SECONDS: i64 = 24 * 3600;

/// A result that can be kept.
pub trait Keepable {
    /// Returns the memory that the result holds, in bytes.
    fn memory_bytes(&self) -> usize;
}

/// Results by the state of a file and by `K`, any other input of the result. Their total memory is limited.
#[derive(Debug)]
pub struct StateCache<K, V>(Mutex<Entries<K, V>>);

impl<K: Copy + Ord, V: Keepable> StateCache<K, V> {
    pub const fn new(max_bytes: usize) -> Self {
        Self(Mutex::new(Entries::new(max_bytes)))
    }

    /// Returns the result for a file that was just opened with this identity, and calls `read` if none is kept. Errors
    /// are not kept.
    pub fn get_or_read(
        &self,
        identity: &Identity,
        input: K,
        read: impl FnOnce() -> Result<V>,
    ) -> Result<Arc<V>> {
        let key = (FileState::new(identity), input);
        if let Some(kept) = fork::with_lock(&self.0, |entries| entries.find(&key)) {
            return Ok(kept);
        }
        let (asked, is_old) = (Instant::now(), is_old(identity, SystemTime::now()));
        let result = Arc::new(read()?);
        let dropped = fork::with_lock(&self.0, |entries| entries.note(key, is_old, &result, asked));
        drop(dropped);
        Ok(result)
    }
}

/// Returns whether the file's times show no change for [`SETTLED_SECONDS`].
fn is_old(identity: &Identity, now: SystemTime) -> bool {
    let settled = if identity.is_on_block_device() { SETTLED_SECONDS } else { CLOCKS_APART_SECONDS };
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    // Both without their fractions: a difference that is larger without them is also larger with them.
    let is_older = |(seconds, _): (i64, i64)| now.saturating_sub(seconds) > settled;
    is_older(identity.modified) && is_older(identity.changed)
}

/// A file in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileState {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    fn new(identity: &Identity) -> Self {
        let &Identity { device, inode, size, modified, changed, .. } = identity;
        Self { device, inode, size, modified, changed }
    }

    /// Returns whether no other file, and no other state of this one, looks the same: its ctime differs from its
    /// modification time, or is fine enough that no two are equal.
    fn tells_apart(&self) -> bool {
        let has_times = self.modified.0 > 0 && self.changed.0 > 0;
        has_times && (self.changed.1 != 0 || self.changed != self.modified)
    }
}

#[derive(Debug)]
struct Entry<V> {
    /// `None` while it is unknown whether the file is settled.
    result: Option<Arc<V>>,
    bytes: usize,
    /// A moment after the file was first seen in this state.
    seen: Instant,
    /// The entry's key in [`Entries::by_use`].
    used: u64,
}

#[derive(Debug)]
struct Entries<K, V> {
    max_bytes: usize,
    bytes: usize,
    by_key: BTreeMap<(FileState, K), Entry<V>>,
    /// The keys in `by_key`, the least recently used first.
    by_use: BTreeMap<u64, (FileState, K)>,
    uses: u64,
}

impl<K: Copy + Ord, V: Keepable> Entries<K, V> {
    /// Memory of an entry besides its result, roughly: nodes of a tree are not always full.
    const ENTRY_BYTES: usize =
        2 * (2 * size_of::<(FileState, K)>() + size_of::<Entry<V>>() + size_of::<u64>());

    const fn new(max_bytes: usize) -> Self {
        Self { max_bytes, bytes: 0, by_key: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    fn find(&mut self, key: &(FileState, K)) -> Option<Arc<V>> {
        let entry = self.by_key.get_mut(key)?;
        let result = entry.result.clone()?;
        self.by_use.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, *key);
        Some(result)
    }

    /// Keeps a result if the file is settled. The result was read after the moment `asked`, when the file was in this
    /// state. Returns the evicted entries, so that the caller drops them outside the lock.
    fn note(&mut self, key: (FileState, K), is_old: bool, result: &Arc<V>, asked: Instant) -> Vec<Entry<V>> {
        let mut dropped = Vec::from_iter(self.take(&key));
        let seen = dropped.first().map_or(asked, |entry| entry.seen.min(asked));
        let is_settled = is_old || asked.duration_since(seen).as_secs() > SETTLED_SECONDS as u64;
        let result = is_settled.then(|| result.clone());
        let bytes = Self::ENTRY_BYTES + result.as_ref().map_or(0, |result| result.memory_bytes());
        if !key.0.tells_apart() || bytes > self.max_bytes {
            return dropped;
        }
        while self.bytes + bytes > self.max_bytes
            && let Some((_, &oldest)) = self.by_use.first_key_value()
        {
            dropped.extend(self.take(&oldest));
        }
        self.uses += 1;
        self.bytes += bytes;
        self.by_use.insert(self.uses, key);
        self.by_key.insert(key, Entry { result, bytes, seen, used: self.uses });
        dropped
    }

    fn take(&mut self, key: &(FileState, K)) -> Option<Entry<V>> {
        let entry = self.by_key.remove(key)?;
        self.by_use.remove(&entry.used);
        self.bytes -= entry.bytes;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Error;
    use crate::mapped_file::{MappedFile, RequestedMode};

    const DAY: u64 = 24 * 3600;

    fn identity() -> Identity {
        let file = tempfile::NamedTempFile::new().expect("a file");
        MappedFile::open(file.path(), RequestedMode::Auto).expect("opened").facts().identity
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(1)
    }

    fn state(inode: u64) -> FileState {
        FileState { device: 1, inode, size: 10, modified: (1000, 5), changed: (1000, 5) }
    }

    fn key(inode: u64) -> (FileState, char) {
        (state(inode), 'a')
    }

    #[derive(Debug)]
    struct Text(String);

    impl Keepable for Text {
        fn memory_bytes(&self) -> usize {
            self.0.len()
        }
    }

    fn text(bytes: usize) -> Arc<Text> {
        Arc::new(Text("x".repeat(bytes)))
    }

    #[test]
    fn a_file_is_old_after_more_than_two_seconds_or_by_a_foreign_clock_after_more_than_a_day() {
        let of = |device: u64, modified: i64, changed: i64| Identity {
            device,
            modified: (modified, 999_999_999),
            changed: (changed, 999_999_999),
            ..identity()
        };
        let disk = 0x801;
        let server = 50;
        assert!(!is_old(&of(disk, 1000, 1000), at(1002)));
        assert!(is_old(&of(disk, 1000, 1000), at(1003)));
        assert!(!is_old(&of(disk, 1000, 1001), at(1003)));
        // Both times count, and a time in the future is never old.
        assert!(!is_old(&of(disk, 1001, 1000), at(1003)));
        assert!(!is_old(&of(disk, i64::MAX, 1000), at(5000)));
        assert!(!is_old(&of(server, 1000, 1000), at(1000 + DAY)));
        assert!(is_old(&of(server, 1000, 1000), at(1001 + DAY)));
    }

    #[test]
    fn a_result_is_kept_once_its_file_was_seen_unchanged_for_long_enough() {
        let (mut cache, first, text) = (Entries::new(1 << 20), Instant::now(), text(10));
        let after = |milliseconds| first + Duration::from_millis(milliseconds);
        let note = |cache: &mut Entries<char, Text>, at| drop(cache.note(key(1), false, &text, at));
        note(&mut cache, first);
        assert!(cache.find(&key(1)).is_none());
        note(&mut cache, after(2999));
        assert!(cache.find(&key(1)).is_none());
        // An answer that took long must make the file look neither younger nor older.
        note(&mut cache, first);
        assert!(cache.find(&key(1)).is_none());
        note(&mut cache, after(3000));
        assert!(Arc::ptr_eq(&cache.find(&key(1)).expect("kept"), &text));
        assert_eq!((cache.by_key.len(), cache.by_use.len()), (1, 1));
    }

    #[test]
    fn each_part_of_a_state_distinguishes_files() {
        let (mut cache, now) = (Entries::new(1 << 20), Instant::now());
        let known = state(1);
        cache.note((known, 'a'), true, &text(10), now);
        assert!(cache.find(&(known, 'a')).is_some());
        assert!(cache.find(&(known, 'b')).is_none());
        for other in [
            FileState { device: 2, ..known },
            FileState { inode: 2, ..known },
            FileState { size: 11, ..known },
            FileState { modified: (1000, 1), ..known },
            FileState { changed: (1000, 1), ..known },
        ] {
            assert!(cache.find(&(other, 'a')).is_none(), "{other:?}");
        }
    }

    #[test]
    fn ambiguous_states_are_not_kept() {
        let (mut cache, now) = (Entries::new(1 << 20), Instant::now());
        for (modified, changed, is_kept) in [
            ((0, 0), (0, 0), false),
            ((0, 7), (0, 7), false),
            ((1000, 0), (1000, 0), false),
            ((1000, 0), (1001, 0), true),
            ((1000, 7), (1000, 7), true),
            ((1000, 0), (1000, 7), true),
        ] {
            let state = FileState { modified, changed, ..state(1) };
            for _ in 0..2 {
                cache.note((state, 'a'), true, &text(10), now);
            }
            assert_eq!(cache.find(&(state, 'a')).is_some(), is_kept, "{state:?}");
        }
    }

    #[test]
    fn the_most_recently_used_results_stay_within_the_limit() {
        let (text, now) = (text(10_000), Instant::now());
        let each = Entries::<char, Text>::ENTRY_BYTES + 10_000;
        let mut cache = Entries::new(3 * each);
        for inode in 1..=3 {
            assert!(cache.note(key(inode), true, &text, now).is_empty());
        }
        assert!(cache.find(&key(1)).is_some());
        assert_eq!(cache.note(key(4), true, &text, now).len(), 1);
        let kept = |cache: &mut Entries<char, Text>| {
            (1..=4).filter(|&inode| cache.find(&key(inode)).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&mut cache), [1, 3, 4]);
        assert_eq!(cache.bytes, 3 * each);
        // A result larger than the limit evicts nothing.
        assert!(cache.note(key(5), true, &self::text(40_000), now).is_empty());
        assert_eq!(kept(&mut cache), [1, 3, 4]);
        // Files that are not settled also take memory.
        for inode in 10..100_000 {
            cache.note(key(inode), false, &text, now);
            assert!(cache.bytes <= cache.max_bytes);
        }
        assert_eq!(cache.by_key.len(), cache.by_use.len());
        assert_eq!(cache.bytes, cache.by_key.values().map(|entry| entry.bytes).sum::<usize>());
    }

    #[test]
    fn an_error_is_not_kept() {
        let (cache, identity) = (StateCache::new(1 << 20), identity());
        assert!(cache.get_or_read(&identity, 'a', || Err(Error::argument("bad"))).is_err());
        let found = cache.get_or_read(&identity, 'a', || Ok(Text("good".into())));
        assert_eq!(found.expect("a text").0, "good");
    }
}
