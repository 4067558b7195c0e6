//! Tokens of every type, widened to every type of batch, compared with arithmetic on wide integers.

use pagestream::internals::{
    Beyond, DoesNotFit, Dtype, Element, TOKEN_DTYPES, Uninit, first_beyond, first_equal, widen, widen_window,
};
use proptest::prelude::*;

const ELEMENTS: [Element; 3] = [Element::I64, Element::I32, Element::Raw];

/// Returns the smallest and the largest token of a type.
fn limits(dtype: Dtype) -> (i128, i128) {
    let bits = dtype.bits();
    match dtype {
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => (0, (1 << bits) - 1),
        _ => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
    }
}

/// Returns a token in its file format.
fn encode(token: i128, dtype: Dtype) -> Vec<u8> {
    token.to_le_bytes()[..(dtype.bits() / 8) as usize].to_vec()
}

/// Computes the expected result of `widen` with i128.
fn oracle(tokens: &[i128], dtype: Dtype, element: Element) -> Result<Vec<u8>, DoesNotFit> {
    let encoded = |token: &i128| match element {
        Element::I64 => i64::try_from(*token).ok().map(|token| token.to_ne_bytes().to_vec()),
        Element::I32 => i32::try_from(*token).ok().map(|token| token.to_ne_bytes().to_vec()),
        Element::Raw => Some(encode(*token, dtype)),
    };
    let rows =
        tokens.iter().enumerate().map(|(position, token)| encoded(token).ok_or(DoesNotFit { position }));
    Ok(rows.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Returns the bytes with `shift` more bytes on both sides, so that they are misaligned.
fn shifted(bytes: &[u8], shift: usize) -> Vec<u8> {
    [&vec![0x55; shift], bytes, &vec![0x55; shift]].concat()
}

/// Runs the kernel on memory at offset `shift` of an allocation, and asserts that it writes nothing outside.
fn widened(tokens: &[i128], dtype: Dtype, element: Element, shift: usize) -> Result<Vec<u8>, DoesNotFit> {
    let source: Vec<u8> = tokens.iter().flat_map(|token| encode(*token, dtype)).collect();
    let source = shifted(&source, shift);
    let mut out = shifted(&vec![0xAA; tokens.len() * element.bytes(dtype) as usize], shift);
    let place = shift..out.len() - shift;
    let answer =
        widen(&source[shift..source.len() - shift], dtype, element, Uninit::of(&mut out[place.clone()]));
    assert_eq!(shifted(&out[place.clone()], shift), out);
    answer.map(|()| out[place].to_vec())
}

/// Does the same for a window: x and y.
fn windowed(
    tokens: &[i128],
    dtype: Dtype,
    element: Element,
    shift: usize,
) -> Result<(Vec<u8>, Vec<u8>), DoesNotFit> {
    let source: Vec<u8> = tokens.iter().flat_map(|token| encode(*token, dtype)).collect();
    let source = shifted(&source, shift);
    let row_bytes = (tokens.len() - 1) * element.bytes(dtype) as usize;
    let [mut x, mut y] = [0xAA, 0xBB].map(|byte| shifted(&vec![byte; row_bytes], shift));
    let place = shift..shift + row_bytes;
    let source = &source[shift..source.len() - shift];
    let answer = widen_window(
        source,
        dtype,
        element,
        Uninit::of(&mut x[place.clone()]),
        Uninit::of(&mut y[place.clone()]),
    );
    for row in [&x, &y] {
        assert_eq!(shifted(&row[place.clone()], shift), *row);
    }
    answer.map(|()| (x[place.clone()].to_vec(), y[place].to_vec()))
}

/// A type and its tokens: arbitrary ones, small ones, and those next to the limits of every type.
fn typed_tokens() -> impl Strategy<Value = (Dtype, Vec<i128>)> {
    let dtypes = TOKEN_DTYPES.iter().map(|known| known.2).collect::<Vec<_>>();
    prop::sample::select(dtypes).prop_flat_map(|dtype| {
        let (least, greatest) = limits(dtype);
        let small = 0..=100_i128.min(greatest);
        let edges = [7, 8, 15, 16, 31, 32, 63, 64].into_iter().flat_map(|bits| {
            let edge = 1_i128 << bits;
            [edge - 1, edge, -edge, -edge - 1]
        });
        let edges = edges.chain([least, greatest]).filter(|edge| (least..=greatest).contains(edge));
        let edges = prop::sample::select(edges.collect::<Vec<_>>());
        // In most cases, all tokens fit every type, because a refusal ends the comparison.
        let any = prop_oneof![4 => small.clone(), 1 => least..=greatest, 1 => edges];
        let token = prop_oneof![2 => small.boxed(), 1 => any.boxed()];
        (Just(dtype), prop::collection::vec(token, 0..200))
    })
}

proptest! {
    #![proptest_config(crate::cases(256))]

    #[test]
    fn every_pair_of_types_does_what_wide_arithmetic_does(
        (dtype, tokens) in typed_tokens(), shift in 0_usize..9
    ) {
        for element in ELEMENTS {
            let expected = oracle(&tokens, dtype, element);
            let found = widened(&tokens, dtype, element, shift);
            prop_assert_eq!(found, expected.clone(), "{} to {:?}", dtype, element);
            if tokens.is_empty() {
                continue;
            }
            let item = element.bytes(dtype) as usize;
            let rows = |all: Vec<u8>| (all[..all.len() - item].to_vec(), all[item..].to_vec());
            let found = windowed(&tokens, dtype, element, shift);
            prop_assert_eq!(found, expected.map(rows), "window of {} to {:?}", dtype, element);
        }
    }

    #[test]
    fn a_refusal_names_the_first_token_that_does_not_fit(
        first in 0_usize..40, further in prop::collection::vec(any::<bool>(), 0..40)
    ) {
        let mut tokens = vec![7; first];
        tokens.push(1 << 31);
        tokens.extend(further.iter().map(|&large| if large { (1 << 32) - 1 } else { 0 }));
        for dtype in [Dtype::U32, Dtype::I64, Dtype::U64] {
            let expected = Err(DoesNotFit { position: first });
            prop_assert_eq!(widened(&tokens, dtype, Element::I32, 0), expected);
            prop_assert_eq!(windowed(&tokens, dtype, Element::I32, 0), Err(DoesNotFit { position: first }));
            prop_assert!(widened(&tokens, dtype, Element::I64, 0).is_ok());
            prop_assert!(windowed(&tokens, dtype, Element::I64, 0).is_ok());
        }
    }
}

#[test]
fn the_limits_of_every_type_fit_or_are_refused() {
    for &(name, _, dtype) in TOKEN_DTYPES {
        let (least, greatest) = limits(dtype);
        for (element, (low, high)) in [(Element::I64, limits(Dtype::I64)), (Element::I32, limits(Dtype::I32))]
        {
            for token in [least, greatest] {
                let fits = (low..=high).contains(&token);
                assert_eq!(
                    widened(&[token], dtype, element, 0).is_ok(),
                    fits,
                    "{token} of {name} as {element:?}"
                );
            }
        }
    }
}

#[test]
fn a_batch_has_elements_of_the_stated_size() {
    for &(_, _, dtype) in TOKEN_DTYPES {
        assert_eq!(Element::I64.bytes(dtype), 8);
        assert_eq!(Element::I32.bytes(dtype), 4);
        assert_eq!(Element::Raw.bytes(dtype), dtype.bits() / 8);
    }
}

#[test]
fn types_are_copies_exactly_if_their_bytes_are_unchanged() {
    for &(name, _, dtype) in TOKEN_DTYPES {
        let (least, greatest) = limits(dtype);
        let tokens: Vec<i128> = (0..90).map(|n| if n % 2 == 0 { least + n } else { greatest - n }).collect();
        let file: Vec<u8> = tokens.iter().flat_map(|token| encode(*token, dtype)).collect();
        for element in ELEMENTS {
            let same = widened(&tokens, dtype, element, 0) == Ok(file.clone());
            assert_eq!(element.is_copy(dtype), same, "{name} to {element:?}");
        }
    }
}

#[test]
fn words_are_those_of_python() {
    assert_eq!(Element::from_word("int64"), Ok(Element::I64));
    assert_eq!(Element::from_word("int32"), Ok(Element::I32));
    assert_eq!(Element::from_word("raw"), Ok(Element::Raw));
    for word in ["", "INT64", "int16", "float32"] {
        let message = Element::from_word(word).expect_err("refused").message();
        assert!(message.ends_with(&format!("not '{word}'")), "{message}");
    }
}

proptest! {
    #![proptest_config(crate::cases(300))]

    #[test]
    fn the_first_id_beyond_a_vocabulary_is_that_of_the_oracle(
        known in prop::sample::select(TOKEN_DTYPES),
        // The length covers whole vectors and a rest.
        picks in prop::collection::vec(0_usize..40, 0..150),
        vocabulary in prop_oneof![1_u64..300, Just(1 << 15), Just(1 << 16), Just(1 << 31), Just(u64::MAX)],
        shift in 0_usize..4,
    ) {
        let dtype = known.2;
        let (least, greatest) = limits(dtype);
        // Most ids are valid, so that the first bad one can be anywhere.
        let tokens: Vec<i128> = picks
            .iter()
            .map(|pick| match pick {
                0 => least,
                1 => greatest,
                2 => i128::from(vocabulary).min(greatest),
                3 => i128::from(vocabulary - 1).min(greatest),
                other => (*other as i128).min(i128::from(vocabulary - 1)),
            })
            .collect();
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| encode(*token, dtype)).collect();
        let bytes = shifted(&bytes, shift);
        let expected = tokens.iter().position(|id| *id < 0 || *id >= i128::from(vocabulary));
        let expected = expected.map(|position| Beyond { position, id: tokens[position] });
        prop_assert_eq!(first_beyond(&bytes[shift..bytes.len() - shift], dtype, vocabulary), expected);
    }

    #[test]
    fn the_first_token_of_an_id_is_that_of_the_oracle(
        known in prop::sample::select(TOKEN_DTYPES),
        // The id is rare, so that it can be in any chunk, in the rest after the chunks, or nowhere.
        picks in prop::collection::vec(0_usize..100, 0..300),
        id in prop_oneof![0_u64..300, Just((1 << 15) - 1), Just(1 << 15), Just(u64::MAX >> 1), Just(u64::MAX)],
        shift in 0_usize..4,
    ) {
        let dtype = known.2;
        let (least, greatest) = limits(dtype);
        let id = i128::from(id);
        let tokens: Vec<i128> = picks
            .iter()
            .map(|pick| match pick {
                0 => id.min(greatest),
                1 => least,
                2 => (-1).max(least),
                // The bytes of an id outside of the type equal those of another id.
                3 => (id & ((1 << dtype.bits()) - 1)).min(greatest),
                other => (*other as i128 + 300).min(greatest),
            })
            .collect();
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| encode(*token, dtype)).collect();
        let bytes = shifted(&bytes, shift);
        let expected = tokens.iter().position(|token| *token == id);
        let found = first_equal(&bytes[shift..bytes.len() - shift], dtype, id as u64);
        prop_assert_eq!(found, expected);
    }
}
