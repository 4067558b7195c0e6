//! Headers of files that were opened before, for programs that open a file again for each tensor.
//!
//! A header is found by what tells one state of a file from another: device, inode, size, the times of the last change of
//! its bytes and of anything, as the server says when the file is opened. These miss a change that comes so soon after
//! another that both get the same time (the *racy* files of git's index). A header is therefore kept only if the file was
//! [`SETTLED_SECONDS`] old before the header was read, so that any later change has another time, on file systems that
//! count in whole or even seconds too. Old by which clock?
//!
//! * A file on a disk of this machine has its times from the clock of this machine.
//! * Other files may have theirs from a server's clock, which nobody knows. They are old if they seem to be older
//!   than any clock is wrong ([`CLOCKS_APART_SECONDS`]), or if an opening that long ago found them in the same state.
//!
//! Some file systems have no time of change of their own, only whole seconds, and inode numbers that they give to another
//! file later (FAT, SFTP): there two files of one size can look alike. No header of such a file is kept
//! ([`FileState::tells_apart`]).
//!
//! **What escapes.** A program that writes to a page through a shared mapping gives the file a new time at its first
//! write to that page, and perhaps not at the next ones until the page is written back.
//!
//! ```text
//!            get_or_read ──(known state)──────────────────────────────────> header
//!                 └──(else)──> read ──(settled)──────> kept, until it is the least recently used
//!                                └───(not settled)───> state noted, with the moment
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::header::Header;
use super::strictness::Strictness;
use crate::error::Result;
use crate::mapped_file::Identity;
use crate::os::process::fork;

/// Upper bound of the memory of all headers that are kept.
const MAX_BYTES: usize = 64 << 20;
/// How long a file must have been as it is: longer than the coarsest file system (FAT) takes for one time.
const SETTLED_SECONDS: i64 = 2;
/// More than clocks of two machines differ, one in the wrong time zone included.
const CLOCKS_APART_SECONDS: i64 = 24 * 3600;
/// Memory of an entry beside its header, roughly: nodes of a tree are not always full.
const ENTRY_BYTES: usize = 2 * (size_of::<(FileState, Entry)>() + size_of::<(u64, FileState)>());

static CACHE: Mutex<HeaderCache> = Mutex::new(HeaderCache::new(MAX_BYTES));

/// Returns the header of a file that was just opened with this identity; calls `read` if no header is kept. Errors are
/// not kept.
pub fn get_or_read(
    identity: &Identity,
    strictness: Strictness,
    read: impl FnOnce() -> Result<Header>,
) -> Result<Arc<Header>> {
    let state = FileState::new(identity, strictness);
    if let Some(kept) = fork::with_lock(&CACHE, |cache| cache.find(&state)) {
        return Ok(kept);
    }
    let (asked, is_old) = (Instant::now(), is_old(identity, SystemTime::now()));
    let header = Arc::new(read()?);
    let dropped = fork::with_lock(&CACHE, |cache| cache.note(state, is_old, &header, asked));
    drop(dropped);
    Ok(header)
}

/// Returns whether the file has been as it is for [`SETTLED_SECONDS`], by the times that it has.
fn is_old(identity: &Identity, now: SystemTime) -> bool {
    let settled = if identity.is_on_block_device() { SETTLED_SECONDS } else { CLOCKS_APART_SECONDS };
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    // Both without their fractions: a difference that is larger is larger with them, too.
    let is_older = |(seconds, _): (i64, i64)| now.saturating_sub(seconds) > settled;
    is_older(identity.modified) && is_older(identity.changed)
}

/// A file at one state, and how its header is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileState {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    strictness: Strictness,
}

impl FileState {
    fn new(identity: &Identity, strictness: Strictness) -> Self {
        let &Identity { device, inode, size, modified, changed, .. } = identity;
        Self { device, inode, size, modified, changed, strictness }
    }

    /// Returns whether no other file, and no other state of this one, looks the same: its time of change is one of its
    /// own, or fine enough that no two are equal.
    fn tells_apart(&self) -> bool {
        let has_times = self.modified.0 > 0 && self.changed.0 > 0;
        has_times && (self.changed.1 != 0 || self.changed != self.modified)
    }
}

#[derive(Debug)]
struct Entry {
    /// `None` while it is not known whether the file is settled.
    header: Option<Arc<Header>>,
    bytes: usize,
    /// A moment after the file was first seen in its state.
    seen: Instant,
    /// The entry's key in [`HeaderCache::by_use`].
    used: u64,
}

/// Headers by file, with a bound on their memory.
#[derive(Debug)]
struct HeaderCache {
    max_bytes: usize,
    bytes: usize,
    entries: BTreeMap<FileState, Entry>,
    /// The states in `entries`, the least recently used first.
    by_use: BTreeMap<u64, FileState>,
    uses: u64,
}

impl HeaderCache {
    const fn new(max_bytes: usize) -> Self {
        Self { max_bytes, bytes: 0, entries: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    fn find(&mut self, state: &FileState) -> Option<Arc<Header>> {
        let entry = self.entries.get_mut(state)?;
        let header = entry.header.clone()?;
        self.by_use.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, *state);
        Some(header)
    }

    /// Keeps a header that was read after the moment `asked`, at which the file was in this state, if the file is
    /// settled. Returns what had to go, for dropping without the lock.
    fn note(&mut self, state: FileState, is_old: bool, header: &Arc<Header>, asked: Instant) -> Vec<Entry> {
        let mut dropped = Vec::from_iter(self.take(&state));
        let seen = dropped.first().map_or(asked, |entry| entry.seen.min(asked));
        let is_settled = is_old || asked.duration_since(seen).as_secs() > SETTLED_SECONDS as u64;
        let header = is_settled.then(|| header.clone());
        let bytes = ENTRY_BYTES + header.as_ref().map_or(0, |header| header.memory_bytes());
        if !state.tells_apart() || bytes > self.max_bytes {
            return dropped;
        }
        while self.bytes + bytes > self.max_bytes
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            let oldest = *oldest;
            dropped.extend(self.take(&oldest));
        }
        self.uses += 1;
        self.bytes += bytes;
        self.by_use.insert(self.uses, state);
        self.entries.insert(state, Entry { header, bytes, seen, used: self.uses });
        dropped
    }

    fn take(&mut self, state: &FileState) -> Option<Entry> {
        let entry = self.entries.remove(state)?;
        self.by_use.remove(&entry.used);
        self.bytes -= entry.bytes;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
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
        let (modified, changed, strictness) = ((1000, 5), (1000, 5), Strictness::Strict);
        FileState { device: 1, inode, size: 10, modified, changed, strictness }
    }

    /// A header with one tensor, of whose metadata the value has `text_bytes`.
    fn header(text_bytes: usize) -> Arc<Header> {
        let text = "x".repeat(text_bytes);
        let json = format!(r#"{{"__metadata__":{{"k":"{text}"}}}}"#);
        let size = 8 + json.len() as u64;
        Arc::new(Header::parse(json.as_bytes(), size, Strictness::Strict).expect("a header"))
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
        // Both times count; and one in the future is never old.
        assert!(!is_old(&of(disk, 1001, 1000), at(1003)));
        assert!(!is_old(&of(disk, i64::MAX, 1000), at(5000)));
        assert!(!is_old(&of(server, 1000, 1000), at(1000 + DAY)));
        assert!(is_old(&of(server, 1000, 1000), at(1001 + DAY)));
    }

    #[test]
    fn a_header_is_kept_once_its_file_was_seen_unchanged_for_long_enough() {
        let (mut cache, first, header) = (HeaderCache::new(1 << 20), Instant::now(), header(10));
        let after = |milliseconds| first + Duration::from_millis(milliseconds);
        let note = |cache: &mut HeaderCache, at| drop(cache.note(state(1), false, &header, at));
        note(&mut cache, first);
        assert!(cache.find(&state(1)).is_none());
        note(&mut cache, after(2999));
        assert!(cache.find(&state(1)).is_none());
        // An answer that was under way for long must not make the file look younger, nor older.
        note(&mut cache, first);
        assert!(cache.find(&state(1)).is_none());
        note(&mut cache, after(3000));
        assert!(Arc::ptr_eq(&cache.find(&state(1)).expect("kept"), &header));
        assert_eq!((cache.entries.len(), cache.by_use.len()), (1, 1));
    }

    #[test]
    fn each_part_of_a_state_tells_files_apart() {
        let (mut cache, now) = (HeaderCache::new(1 << 20), Instant::now());
        let known = state(1);
        cache.note(known, true, &header(10), now);
        assert!(cache.find(&known).is_some());
        for other in [
            FileState { device: 2, ..known },
            FileState { inode: 2, ..known },
            FileState { size: 11, ..known },
            FileState { modified: (1000, 1), ..known },
            FileState { changed: (1000, 1), ..known },
            FileState { strictness: Strictness::Upstream, ..known },
        ] {
            assert!(cache.find(&other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn what_looks_like_other_files_is_not_kept() {
        let (mut cache, now) = (HeaderCache::new(1 << 20), Instant::now());
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
                cache.note(state, true, &header(10), now);
            }
            assert_eq!(cache.find(&state).is_some(), is_kept, "{state:?}");
        }
    }

    #[test]
    fn what_was_used_last_stays_within_the_bound() {
        let (header, now) = (header(10_000), Instant::now());
        let each = ENTRY_BYTES + header.memory_bytes();
        assert!(header.memory_bytes() >= 10_000);
        let mut cache = HeaderCache::new(3 * each);
        for inode in 1..=3 {
            assert!(cache.note(state(inode), true, &header, now).is_empty());
        }
        assert!(cache.find(&state(1)).is_some());
        assert_eq!(cache.note(state(4), true, &header, now).len(), 1);
        let kept = |cache: &mut HeaderCache| {
            (1..=4).filter(|&inode| cache.find(&state(inode)).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&mut cache), [1, 3, 4]);
        assert_eq!(cache.bytes, 3 * each);
        // One that is larger than the bound displaces none.
        assert!(cache.note(state(5), true, &self::header(40_000), now).is_empty());
        assert_eq!(kept(&mut cache), [1, 3, 4]);
        // Files that are not settled take room as well.
        for inode in 10..100_000 {
            cache.note(state(inode), false, &header, now);
            assert!(cache.bytes <= cache.max_bytes);
        }
        assert_eq!(cache.entries.len(), cache.by_use.len());
        assert_eq!(cache.bytes, cache.entries.values().map(|entry| entry.bytes).sum::<usize>());
    }

    #[test]
    fn an_error_is_not_kept() {
        let identity = identity();
        let refused =
            get_or_read(&identity, Strictness::Strict, || Err(crate::error::Error::argument("bad")));
        assert!(refused.is_err());
        let json = b"{}";
        let read = || Ok(Header::parse(json, 10, Strictness::Strict).expect("a header"));
        assert!(get_or_read(&identity, Strictness::Strict, read).is_ok());
    }
}
