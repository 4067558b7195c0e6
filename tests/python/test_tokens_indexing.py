"""Corpora in place of arrays: shapes, and lists and arrays as indices."""

import numpy as np
import pytest
import torch

from pagestream import open_tokens

from support.token_files import TOKEN_TYPES, tokens_of, write_shards


@pytest.mark.parametrize("mode", ["shared", "read"])
@pytest.mark.parametrize("dtype", TOKEN_TYPES)
def test_lists_and_arrays_pick_tokens_as_in_numpy(tmp_path, dtype, mode):
    tokens = tokens_of(dtype, 100)
    with open_tokens(write_shards(tmp_path, tokens, [30, 0, 69, 1]), dtype=dtype, mmap_mode=mode) as corpus:
        assert (corpus.ndim, corpus.shape, corpus.nbytes) == (1, tokens.shape, tokens.nbytes)
        for index in (
            [0, 99, 30, 29, -1, -100, 30],
            [],
            [True, 1],  # NumPy also treats these as integers
            np.array([[1, 31], [-2, 98]], "i1"),
            np.array([5, 99], "u1"),
            np.array([99, 0], "u8"),
            np.zeros((3, 0), int),
            np.arange(99, -1, -7),
        ):
            picked = corpus[index]
            expected = tokens[np.asarray(index, int)]
            assert picked.dtype == tokens.dtype
            assert picked.tolist() == expected.tolist()
            assert picked.shape == expected.shape
            assert picked.flags.writeable
        assert corpus[torch.tensor([3, 4])].tolist() == tokens[3:5].tolist()
        assert corpus[np.array(3)] == corpus[np.int8(3)] == tokens[3]


def test_a_part_picks_its_own_tokens(tmp_path):
    part = open_tokens(write_shards(tmp_path, tokens_of("<u2", 100), [60, 40])).part(50, 70)
    assert part[[0, -1, 10]].tolist() == [part[0], part[19], part[10]]
    assert (part.shape, part.nbytes) == ((20,), 40)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        ([0, 10], IndexError, "token 10 of 10"),
        ([-11], IndexError, "token -11 of 10"),
        (np.array([(1 << 64) - 1], "u8"), IndexError, "token 18446744073709551615 of 10"),
        ([0.5], TypeError, "by integers, not by an array of float64"),
        (np.arange(10) < 3, TypeError, r"an array of bool; in place of a mask pass np\.flatnonzero\(mask\)"),
        (["1"], TypeError, "by integers"),
        ((0, 1), TypeError, r"by integers, not by \(0, 1\)$"),
        ("1", TypeError, "^tokens are picked by integers, not by '1'$"),
        (1.0, TypeError, "by integers, not by 1.0"),
        (None, TypeError, "by integers, not by None"),
    ],
    ids=str,
)
def test_invalid_indices_are_refused(tmp_path, index, error, message):
    corpus = open_tokens(write_shards(tmp_path, tokens_of("<u2", 10), [10]))
    with pytest.raises(error, match=message):
        corpus[index]
