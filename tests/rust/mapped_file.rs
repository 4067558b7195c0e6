//! `MappedFile` and the rooms below it, without Python.

use pagestream::internals::{
    Code, Error, MappedFile, Mapping, Mode, ReadCause, Region, RequestedMode, Uninit, describe,
    install_and_check,
};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

const MODES: [RequestedMode; 3] = [RequestedMode::Shared, RequestedMode::Private, RequestedMode::Read];

/// Writes a file of `len` bytes in which each 8 bytes hold their own number.
fn numbered(len: usize) -> (TempDir, PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("file");
    let bytes: Vec<u8> = (0..len.div_ceil(8) as u64).flat_map(u64::to_le_bytes).take(len).collect();
    std::fs::write(&path, &bytes).expect("a file");
    (folder, path, bytes)
}

#[test]
fn every_mode_reads_the_same() {
    let (_folder, path, bytes) = numbered(100_003);
    for mode in MODES {
        let file = MappedFile::open(&path, mode).expect("open");
        let opened = file.opened().expect("not closed");
        assert_eq!(opened.read(0, 100_003).expect("read"), bytes);
        assert_eq!(opened.read(5, 77).expect("read"), bytes[5..82]);
        assert_eq!(file.facts().mode.word(), mode.word());
        assert_eq!(file.facts().reason, None);
    }
}

proptest! {
    #![proptest_config(crate::cases(64))]

    #[test]
    fn ranges_are_those_of_a_slice_or_refused(offset in 0_u64..5_000, length in 0_u64..5_000, mode in 0_usize..3) {
        let (_folder, path, bytes) = numbered(4_500);
        let opened = MappedFile::open(&path, MODES[mode]).expect("open").opened().expect("not closed");
        let found = opened.read(offset, length);
        if let Some(expected) = bytes.get(offset as usize..(offset + length) as usize) {
            prop_assert_eq!(found.expect("inside"), expected);
        } else {
            let refused = matches!(found, Err(Error::OutOfRange { size: 4_500, .. }));
            prop_assert!(refused);
        }
    }
}

#[test]
fn ranges_that_overflow_are_refused() {
    let (_folder, path, _) = numbered(100);
    let opened = MappedFile::open(&path, RequestedMode::Auto).expect("open").opened().expect("not closed");
    for (offset, length) in [(u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX), (101, 0)] {
        assert!(
            matches!(opened.check_range(offset, length), Err(Error::OutOfRange { .. })),
            "{offset} {length}"
        );
        assert!(opened.view(offset, length).is_err());
        assert!(opened.copy_on_write_view(offset, length).is_err());
    }
}

#[test]
fn a_cut_file_is_an_error_with_place_and_cause() {
    let (_folder, path, bytes) = numbered(1 << 20);
    for mode in MODES {
        std::fs::write(&path, &bytes).expect("restored");
        let opened = MappedFile::open(&path, mode).expect("open").opened().expect("not closed");
        assert_eq!(opened.read(0, 16).expect("whole"), bytes[..16]);
        OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(8192)).expect("cut");
        let Err(Error::MappedRead { offset, length, cause, path: named }) = opened.read(0, 1 << 20) else {
            panic!("not noticed in {mode:?}");
        };
        assert_eq!((offset, length, named), (8192, (1 << 20) - 8192, path.clone()));
        assert_eq!(cause, ReadCause::Truncated { size_at_open: 1 << 20, size_now: 8192 });
    }
}

#[test]
fn a_file_rewritten_with_the_same_size_is_refused() {
    let (_folder, path, bytes) = numbered(1 << 20);
    for mode in MODES {
        std::fs::write(&path, &bytes).expect("restored");
        let file = MappedFile::open(&path, mode).expect("open");
        let opened = file.opened().expect("not closed");
        let writer = OpenOptions::new().write(true).open(&path).expect("open to write");
        writer.write_all_at(&[255; 4096], 0).expect("rewritten");
        // Two writes within a tick of the kernel's clock may get the same time.
        let later =
            writer.metadata().and_then(|known| known.modified()).expect("a time") + Duration::from_secs(1);
        writer.set_modified(later).expect("set");
        for found in [opened.read(0, 4096).map(drop), file.check(), file.refresh().map(drop)] {
            assert!(matches!(found, Err(Error::FileChanged { .. })), "{mode:?}: {found:?}");
        }
    }
}

#[test]
fn a_file_cut_under_four_threads_gives_errors_or_its_own_bytes() {
    let (_folder, path, bytes) = numbered(1 << 20);
    for mode in MODES {
        std::fs::write(&path, &bytes).expect("restored");
        let opened = MappedFile::open(&path, mode).expect("open").opened().expect("not closed");
        let (good, failed) = (AtomicU32::new(0), AtomicU32::new(0));
        let read_until_failures = |seed: u64| {
            let mut state = seed;
            while failed.load(Ordering::Relaxed) < 100 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let start = (state >> 33) % ((1 << 20) - 4096);
                if let Ok(found) = opened.read(start, 4096) {
                    assert_eq!(found, &bytes[start as usize..start as usize + 4096]);
                    good.fetch_add(1, Ordering::Relaxed);
                } else {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || read_until_failures(seed));
            }
            while good.load(Ordering::Relaxed) < 100 {
                std::thread::yield_now();
            }
            OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(4096 * 3)).expect("cut");
        });
        assert!(failed.into_inner() >= 100, "{mode:?}");
    }
}

#[test]
fn the_copy_says_exactly_enough_about_what_it_copied() {
    let (_folder, path, bytes) = numbered(64 << 10);
    assert!(install_and_check());
    let file = File::open(&path).expect("open");
    let region =
        Region::map(std::os::fd::AsFd::as_fd(&file), std::path::Path::new(""), 64 << 10, Mapping::Shared)
            .expect("map");
    OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(16 << 10)).expect("cut");
    // Covers all alignments and the lengths of each routine. The bytes reported as good must be right, and their count
    // must be within one block of the possible maximum.
    for offset in (0..64).chain((16 << 10) - 200..(16 << 10) + 3) {
        for len in [1, 7, 8, 63, 64, 65, 127, 128, 129, 300, 4095, 4096, 5000, 20_000, 40_000] {
            let mut out = vec![0_u8; len];
            let copied = match region.copy_out(offset, Uninit::of(&mut out)) {
                Ok(_) => len,
                Err(good) => good,
            };
            let readable = len.min((16_usize << 10).saturating_sub(offset));
            assert!(copied <= readable && readable - copied <= 128, "{offset} {len}: {copied} of {readable}");
            assert_eq!(out[..copied], bytes[offset..offset + copied]);
        }
    }
    assert_eq!(region.copy_out(64 << 10, Uninit::of(&mut [0])), Err(0));
    assert_eq!(region.touch(0, 64 << 10), Err(16 << 10));
}

#[test]
fn growth_is_refreshed_and_anything_else_is_not() {
    let (_folder, path, bytes) = numbered(10_000);
    let file = MappedFile::open(&path, RequestedMode::Auto).expect("open");
    let old = file.opened().expect("not closed").view(0, 10_000).expect("inside").expect("mapped");
    OpenOptions::new().append(true).open(&path).and_then(|mut file| file.write_all(b"more")).expect("append");
    let grown = file.opened().expect("not closed").read(0, 10);
    assert!(matches!(grown, Err(Error::FileChanged { .. })), "not trusted before it is refreshed: {grown:?}");
    assert_eq!(file.refresh(), Ok(10_004));
    assert_eq!(file.opened().expect("not closed").read(0, 10).expect("readable"), bytes[..10]);
    assert_eq!(file.opened().expect("not closed").read(10_000, 4).expect("new"), b"more");
    assert_eq!(old.len(), 10_000);
    OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(5)).expect("cut");
    assert!(matches!(file.refresh(), Err(Error::FileChanged { .. })));
    assert!(matches!(file.check(), Err(Error::FileChanged { .. })));
}

#[test]
fn copy_on_write_pages_are_their_own() {
    let (_folder, path, bytes) = numbered(10_000);
    let opened = MappedFile::open(&path, RequestedMode::Auto).expect("open").opened().expect("not closed");
    let shared = opened.view(0, 10_000).expect("inside").expect("mapped");
    let first = opened.copy_on_write_view(0, 10_000).expect("inside").expect("mapped");
    let again = opened.copy_on_write_view(8, 8).expect("inside").expect("mapped");
    assert_ne!(shared.as_ptr(), first.as_ptr());
    assert_eq!(first.as_ptr().wrapping_add(8), again.as_ptr(), "one mapping a protection");
    assert_eq!(std::fs::read(&path).expect("the file"), bytes);
}

#[test]
fn after_closing_there_is_nothing_to_read() {
    let (_folder, path, _) = numbered(10);
    let file = MappedFile::open(&path, RequestedMode::Auto).expect("open");
    file.close();
    assert!(matches!(file.opened(), Err(Error::Closed { .. })));
    assert_eq!((file.size(), file.facts().mode), (10, Mode::Shared));
}

#[test]
fn words_are_words() {
    for word in ["auto", "shared", "private", "read"] {
        assert_eq!(RequestedMode::from_word(word).map(RequestedMode::word), Ok(word));
    }
    assert!(RequestedMode::from_word("pread").is_err());
}

#[test]
fn messages_name_the_path_and_no_bare_errno() {
    let error = MappedFile::open("/missing/file".as_ref(), RequestedMode::Auto).expect_err("missing");
    assert_eq!(error.to_string(), "/missing/file: cannot open: No such file or directory");
    assert_eq!(describe(Code::NODEV), "ENODEV (No such device)");
}
