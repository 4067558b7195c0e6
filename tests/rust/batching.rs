//! Batches of windows that cross files, against naive slicing.

use pagestream::batching::assemble::{Room, assemble};
use pagestream::error::{Error, ReadCause};
use pagestream::gather::Element;
use pagestream::mapped_file::RequestedMode;
use pagestream::os::room;
use pagestream::tokens::corpus::TokenCorpus;
use pagestream::tokens::windows::{Target, Windows};
use proptest::prelude::*;

use super::tokens_corpus::{MODES, corpus};

/// x and y as bytes; y is empty for `Target::None`.
fn batch(
    corpus: &TokenCorpus,
    windows: &Windows,
    indices: &[u64],
    element: Element,
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let bytes = windows.sequence_length() * element.bytes(corpus.dtype()) * indices.len() as u64;
    let mut x = vec![0xAA; bytes as usize];
    let mut y = vec![0xAA; if windows.target() == Target::None { 0 } else { x.len() }];
    let targets = (windows.target() != Target::None).then(|| room(&mut y));
    assemble(corpus, windows, indices, element, Room { x: room(&mut x), y: targets })?;
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
    #![proptest_config(ProptestConfig::with_cases(150))]

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
        // The tokens are their own numbers.
        let rows = |shift: u64| {
            let starts = indices.iter().map(move |index| index * stride + shift);
            encoded(starts.flat_map(|start| start..start + sequence_length), element)
        };
        prop_assert_eq!(x, rows(0));
        prop_assert_eq!(y, if target == Target::None { vec![] } else { rows(1) });
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
        let place = Room { x: room(&mut x), y: y.as_mut().map(|y| room(y)) };
        let result = assemble(&corpus, windows, &[0, 1], Element::I64, place);
        assert_eq!(result.is_ok(), fits, "{x_bytes} {y_bytes:?} {:?}", windows.target());
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
        // In the page that is gone; in the one that is left; across both files.
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
    let dtype = Some(pagestream::dtype::Dtype::U32);
    let corpus = TokenCorpus::open(&paths, dtype, None, RequestedMode::Auto).expect("opened");
    let windows = Windows::new(8, 3, 1, Target::Shift).expect("valid");
    // Token 7 is a target of the last window alone.
    batch(&corpus, &windows, &[0, 3], Element::I32).expect("these fit");
    batch(&corpus, &windows, &[4], Element::I64).expect("it fits");
    let error = batch(&corpus, &windows, &[3, 4], Element::I32).expect_err("refused");
    assert!(
        error.message().starts_with("token 7 of the corpus (number 3 of this file) does not fit in int32"),
        "{error}"
    );
    assert_eq!(error.path(), Some(paths[1].as_path()));
}
