//! Batches of windows that span files, compared with naive slicing.

use std::sync::Arc;

use pagestream::internals::{
    Dtype, Element, Error, ReadCause, RequestedMode, RowCopier, Target, TokenCorpus, Uninit, Windows,
    assemble,
};
use proptest::prelude::*;

use super::tokens_corpus::{MODES, corpus};

/// Returns x and y as bytes. For `Target::None`, y is empty.
fn batch(
    corpus: &Arc<TokenCorpus>,
    windows: &Windows,
    indices: &[u64],
    element: Element,
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let bytes = windows.sequence_length * element.bytes(corpus.dtype) * indices.len() as u64;
    let mut x = vec![0xAA; bytes as usize];
    let mut y = vec![0xAA; if windows.target == Target::None { 0 } else { x.len() }];
    let targets = (windows.target != Target::None).then(|| Uninit::of(&mut y));
    assemble(corpus, windows, indices, element, None, Uninit::of(&mut x), targets)?;
    Ok((x, y))
}

fn encoded(tokens: impl Iterator<Item = u64>, element: Element) -> Vec<u8> {
    let encode = |token: u64| match element {
        Element::I64 => (token as i64).to_ne_bytes().to_vec(),
        Element::I32 => (token as i32).to_ne_bytes().to_vec(),
        Element::Raw => (token as u16).to_le_bytes().to_vec(),
    };
    tokens.flat_map(encode).collect()
}

proptest! {
    #![proptest_config(crate::cases(150))]

    #[test]
    fn a_batch_is_the_naive_slices(
        lengths in prop::collection::vec(prop_oneof![1 => Just(0), 3 => 1_usize..30], 1..7),
        sequence_length in 1_u64..20,
        stride in 1_u64..25,
        target in prop::sample::select(vec![Target::Shift, Target::Block, Target::None]),
        element in prop::sample::select(vec![Element::I64, Element::I32, Element::Raw]),
        mode in 0_usize..3,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
    ) {
        let (_folder, corpus) = corpus(&lengths, MODES[mode]);
        let span = sequence_length + u64::from(target != Target::None);
        let windows = Windows::new(corpus.len(), sequence_length, stride, target);
        prop_assert_eq!(windows.is_ok(), span <= corpus.len());
        let Ok(windows) = windows else { return Ok(()) };
        let count = (0..corpus.len()).filter(|number| number * stride + span <= corpus.len()).count();
        prop_assert_eq!(windows.count(), count as u64);
        let indices: Vec<u64> = picks.iter().map(|pick| pick.index(count) as u64).collect();
        let (x, y) = batch(&corpus, &windows, &indices, element).expect("a batch");
        // Each token equals its position.
        let rows = |shift: u64| {
            let starts = indices.iter().map(move |index| index * stride + shift);
            encoded(starts.flat_map(|start| start..start + sequence_length), element)
        };
        prop_assert_eq!(x, rows(0));
        prop_assert_eq!(y, if target == Target::None { vec![] } else { rows(1) });
    }
}

/// These windows exceed a block, and their blocks and files end at different tokens.
#[test]
fn long_windows_are_the_naive_slices() {
    let lengths = [5000, 0, 1, 12_000, 20_000];
    for (mode, sequence_length) in MODES
        .into_iter()
        .flat_map(|mode| [4095, 4096, 4097, 8191, 8192, 8193, 20_000, 37_000].map(|length| (mode, length)))
    {
        let (_folder, corpus) = corpus(&lengths, mode);
        for target in [Target::Shift, Target::None] {
            let windows = Windows::new(corpus.len(), sequence_length, 1, target).expect("valid");
            let indices = [0, windows.count() / 3, windows.count() - 1];
            for element in [Element::I64, Element::I32, Element::Raw] {
                let (x, y) = batch(&corpus, &windows, &indices, element).expect("a batch");
                let rows = |shift: u64| {
                    encoded(
                        indices.iter().flat_map(|index| index + shift..index + shift + sequence_length),
                        element,
                    )
                };
                assert!(x == rows(0), "{mode:?} {sequence_length} {target:?} {element:?}");
                let expected = if target == Target::None { vec![] } else { rows(1) };
                assert!(y == expected, "{mode:?} {sequence_length} {target:?} {element:?}");
            }
        }
    }
}

/// Covers the file's own type, which needs no kernel, and a type that is checked, block by block.
#[test]
fn wide_tokens_of_long_windows_come_as_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = ["0", "1"].map(|name| folder.path().join(name));
    let all: Vec<i64> = (0..6000).map(|number| number * 7 - 9000).collect();
    let place = 1 << 31;
    for (path, tokens) in paths.iter().zip([&all[..2500], &all[2500..]]) {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        std::fs::write(path, bytes).expect("written");
    }
    for mode in MODES {
        let dtype = Some(Dtype::I64);
        let corpus = Arc::new(TokenCorpus::open(&paths, dtype, None, mode).expect("opened"));
        let windows = Windows::new(6000, 3100, 1, Target::Shift).expect("valid");
        let rows = |shift: usize, encode: fn(&i64) -> Vec<u8>| -> Vec<u8> {
            [0, 2899]
                .iter()
                .flat_map(|start| all[start + shift..start + shift + 3100].iter())
                .flat_map(encode)
                .collect()
        };
        let wide: fn(&i64) -> Vec<u8> = |token| token.to_ne_bytes().to_vec();
        let narrow: fn(&i64) -> Vec<u8> = |token| (*token as i32).to_ne_bytes().to_vec();
        for (element, encode) in [(Element::I64, wide), (Element::I32, narrow), (Element::Raw, wide)] {
            let (x, y) = batch(&corpus, &windows, &[0, 2899], element).expect("a batch");
            assert!(x == rows(0, encode) && y == rows(1, encode), "{mode:?} {element:?}");
        }
    }
    // The oversized token is in the second block of the window. Its position counts from the window's start.
    let mut bytes = std::fs::read(&paths[0]).expect("read");
    bytes[2000 * 8..2001 * 8].copy_from_slice(&i64::to_le_bytes(place));
    std::fs::write(&paths[0], bytes).expect("written");
    let dtype = Some(Dtype::I64);
    for mode in MODES {
        let corpus = Arc::new(TokenCorpus::open(&paths, dtype, None, mode).expect("opened"));
        let windows = Windows::new(6000, 3100, 1, Target::Shift).expect("valid");
        batch(&corpus, &windows, &[2001], Element::I32).expect("it begins after that token");
        let error = batch(&corpus, &windows, &[2001, 5], Element::I32).expect_err("refused");
        let expected = "token 2000 of the corpus (number 2000 of this file) does not fit in int32";
        assert!(error.message().starts_with(expected), "{error}");
    }
}

#[test]
fn a_window_outside_is_an_index_error() {
    let (_folder, corpus) = corpus(&[5, 5], RequestedMode::Auto);
    let windows = Windows::new(10, 4, 1, Target::Shift).expect("valid");
    for index in [6, u64::MAX] {
        let error = batch(&corpus, &windows, &[0, index], Element::I64).expect_err("refused");
        assert_eq!(error, Error::Index { detail: format!("window {index} of 6") });
    }
}

#[test]
fn room_of_another_size_is_refused() {
    let (_folder, corpus) = corpus(&[10], RequestedMode::Auto);
    let shift = Windows::new(10, 4, 1, Target::Shift).expect("valid");
    let alone = Windows::new(10, 4, 1, Target::None).expect("valid");
    for (windows, x_bytes, y_bytes, fits) in [
        (&shift, 64, Some(64), true),
        (&shift, 63, Some(64), false),
        (&shift, 65, Some(65), false),
        (&shift, 64, Some(32), false),
        (&shift, 64, None, false),
        (&alone, 64, None, true),
        (&alone, 64, Some(64), false),
        (&alone, 0, None, false),
    ] {
        let mut x = vec![0; x_bytes];
        let mut y = y_bytes.map(|bytes| vec![0; bytes]);
        let targets = y.as_mut().map(|y| Uninit::of(y));
        let result = assemble(&corpus, windows, &[0, 1], Element::I64, None, Uninit::of(&mut x), targets);
        assert_eq!(result.is_ok(), fits, "{x_bytes} {y_bytes:?} {:?}", windows.target);
    }
}

#[test]
fn a_file_cut_between_two_batches_is_an_error_in_every_mode() {
    for mode in MODES {
        let (folder, corpus) = corpus(&[5000, 5000], mode);
        let windows = Windows::new(10_000, 100, 1, Target::Shift).expect("valid");
        batch(&corpus, &windows, &[0, 9000], Element::I64).expect("whole so far");
        let second = folder.path().join("1");
        let file = std::fs::File::options().write(true).open(&second).expect("opened");
        file.set_len(4096).expect("cut");
        batch(&corpus, &windows, &[0, 4899], Element::I64).expect("the first file is whole");
        // The first index is in the missing page, the second in the remaining page, and the third window spans both
        // files.
        for index in [9000, 5000, 4950] {
            let error = batch(&corpus, &windows, &[0, index], Element::I64).expect_err("cut");
            let Error::MappedRead { path, cause, .. } = error else { panic!("{mode:?} {index}: {error:?}") };
            assert_eq!(path, second);
            assert_eq!(cause, ReadCause::Truncated { size_at_open: 10_000, size_now: 4096 });
        }
    }
}

#[test]
fn a_token_too_large_is_refused_with_its_place_and_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = ["0", "1"].map(|name| folder.path().join(name));
    for (path, last) in paths.iter().zip([7_u32, 1 << 31]) {
        let tokens = [1, 2, 3, last].map(u32::to_le_bytes).concat();
        std::fs::write(path, tokens).expect("written");
    }
    let dtype = Some(Dtype::U32);
    let corpus = Arc::new(TokenCorpus::open(&paths, dtype, None, RequestedMode::Auto).expect("opened"));
    let windows = Windows::new(8, 3, 1, Target::Shift).expect("valid");
    // Token 7 is only a target of the last window.
    batch(&corpus, &windows, &[0, 3], Element::I32).expect("these fit");
    batch(&corpus, &windows, &[4], Element::I64).expect("it fits");
    let error = batch(&corpus, &windows, &[3, 4], Element::I32).expect_err("refused");
    assert!(
        error.message().starts_with("token 7 of the corpus (number 3 of this file) does not fit in int32"),
        "{error}"
    );
    assert_eq!(error.path(), Some(paths[1].as_path()));
}

/// Reads one row of uint16 tokens as int64.
fn row(gatherer: &mut RowCopier, window: (u64, u64), has_targets: bool) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let length = (window.1 - window.0) as usize - usize::from(has_targets);
    let [mut x, mut y] = [(); 2].map(|()| vec![0xAA; length * 8]);
    let y_row = has_targets.then(|| Uninit::of(&mut y));
    gatherer.row(window, Element::I64, Uninit::of(&mut x), y_row)?;
    Ok((x, y))
}

fn int64(tokens: std::ops::Range<u64>) -> Vec<u8> {
    encoded(tokens, Element::I64)
}

#[test]
fn a_gatherer_serves_batch_after_batch() {
    for mode in MODES {
        let (_folder, corpus) = corpus(&[300, 0, 700], mode);
        let mut gatherer = RowCopier::new(corpus, None, None);
        gatherer.verify().expect("nothing was read");
        for _ in 0..2 {
            for start in [0, 299, 400, 100] {
                let (x, y) = row(&mut gatherer, (start, start + 51), true).expect("a row");
                assert_eq!((x, y), (int64(start..start + 50), int64(start + 1..start + 51)));
            }
            let (x, _) = row(&mut gatherer, (250, 350), false).expect("a row");
            assert_eq!(x, int64(250..350));
            gatherer.verify().expect("unchanged");
        }
    }
}

#[test]
fn a_row_of_another_size_or_outside_is_refused() {
    let (_folder, corpus) = corpus(&[10], RequestedMode::Auto);
    let mut gatherer = RowCopier::new(corpus, None, None);
    let mut fill = |window: (u64, u64), x_bytes: usize, y_bytes: Option<usize>| {
        let mut x = vec![0; x_bytes];
        let mut y = y_bytes.map(|bytes| vec![0; bytes]);
        let y_row = y.as_mut().map(|y| Uninit::of(y));
        gatherer.row(window, Element::I64, Uninit::of(&mut x), y_row)
    };
    fill((0, 5), 32, Some(32)).expect("it fits");
    fill((5, 10), 40, None).expect("it fits");
    fill((9, 10), 0, Some(0)).expect("nothing to do");
    for (window, x_bytes, y_bytes) in [
        ((0, 5), 40, Some(40)),
        ((0, 5), 32, Some(40)),
        ((0, 5), 40, Some(32)),
        ((0, 5), 32, None),
        ((5, 0), 0, None),
        ((5, 5), 0, Some(0)),
        ((0, u64::MAX), 8, None),
    ] {
        let error = fill(window, x_bytes, y_bytes).expect_err("refused");
        assert!(error.message().contains("not of the window's size"), "{window:?}: {error}");
    }
    for (window, has_targets) in [((7, 11), false), ((6, 11), true), ((u64::MAX - 5, u64::MAX), true)] {
        let bytes = (window.1 - window.0) as usize * 8 - usize::from(has_targets) * 8;
        let error = fill(window, bytes, has_targets.then_some(bytes)).expect_err("outside");
        assert!(matches!(error, Error::Index { .. }), "{window:?}: {error:?}");
    }
}

#[test]
fn a_gatherer_sees_at_the_end_that_a_file_was_cut() {
    for mode in MODES {
        let (folder, corpus) = corpus(&[5000, 5000], mode);
        let mut gatherer = RowCopier::new(corpus, None, None);
        for start in [0, 9000, 100] {
            row(&mut gatherer, (start, start + 50), true).expect("whole so far");
        }
        let second = folder.path().join("1");
        let file = std::fs::File::options().write(true).open(&second).expect("opened");
        file.set_len(4096).expect("cut");
        let error = gatherer.verify().expect_err("cut");
        assert_eq!(error.path(), Some(second.as_path()), "{mode:?}");
        // The copier checks each file once, and does not check files that it has not read since.
        row(&mut gatherer, (0, 50), true).expect("the first file is whole");
        gatherer.verify().expect("the first file is whole");
    }
}
