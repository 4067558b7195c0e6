"""`numpy.memmap` arrays in place of paths."""

import os
import pickle

import numpy as np
import pytest

from pagestream import Mixture, TokenLoader, open_tokens
from pagestream.errors import FileChangedError
from pagestream.torch import TokenDataset

TOKENS = np.arange(10_000, dtype="u2")


@pytest.fixture
def path(tmp_path):
    TOKENS.tofile(tmp_path / "tokens.bin")
    return tmp_path / "tokens.bin"


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_memmap_is_its_file(path, mode):
    with open_tokens(np.memmap(path, "u2", mode)) as tokens:
        assert tokens.shards[0].path == str(path)
        assert (tokens.dtype, tokens.fingerprint) == ("uint16", open_tokens(path).fingerprint)
        assert np.array_equal(tokens, TOKENS)
    with TokenLoader(np.memmap(path, "u2", mode), sequence_length=8, batch_size=1) as loader:
        assert (loader.tokens.mode, len(loader)) == ("shared", 1249)
    assert len(TokenDataset(np.memmap(path, "u2", mode)[:100], 4)) == 96
    with Mixture([(np.memmap(path, "u2", mode), 1), (path, 1)]) as mixture:
        assert [len(source) for source in mixture.sources] == [len(TOKENS)] * 2


def test_slices_and_offsets_are_the_parts_of_the_file(path, tmp_path):
    whole = np.memmap(path, "u2", "r")
    for array in (
        whole[9000:],
        whole[10:9000][20:-5],
        whole[7:8],
        np.memmap(path, "u2", "r", offset=8194, shape=(3000,)),
        np.memmap(path, "u2", "r", offset=8194)[5:50],
        np.memmap(path, "u2", "r", shape=(100, 100)).reshape(-1),
        np.memmap(path, "u2", "r", shape=(100, 100))[3],
        np.memmap(path, "u4", "r", offset=4100),
    ):
        tokens = open_tokens(array)
        assert tokens.dtype == array.dtype
        assert np.array_equal(tokens, array)
        assert np.array_equal(pickle.loads(pickle.dumps(tokens)), array)
    np.save(tmp_path / "tokens.npy", TOKENS)
    assert np.array_equal(open_tokens(np.load(tmp_path / "tokens.npy", mmap_mode="r")), TOKENS)


def test_arrays_without_a_file_are_refused(path):
    whole = np.memmap(path, "u2", "r")
    for array, error, message in (
        (TOKENS, TypeError, r"in memory; write it with write_tokens\(path, array"),
        (whole + 1, TypeError, "in memory"),
        (whole[[1, 2]], TypeError, "in memory"),
        (np.memmap(path, "u2", "r", shape=(100, 100)), TypeError, r"shape \(100, 100\).*pass reshape\(-1\)"),
        (whole[::2], ValueError, "has a step; pass the path"),
        (whole[::-1], ValueError, "has a step"),
        (np.memmap(path, "u2", "c"), ValueError, 'has mode "c"'),
        (np.memmap(path, "u2", "r", offset=3, shape=(100,)), ValueError, "begins at byte 3"),
        (np.memmap(path, "f4", "r"), ValueError, "float32"),
        (np.memmap(path, ">u2", "r"), ValueError, "little-endian"),
    ):
        with pytest.raises(error, match=message):
            open_tokens(array)
    with pytest.raises(ValueError, match="dtype='u2' has no effect"):
        open_tokens(whole, dtype="u2")
    with pytest.raises(ValueError, match="format='raw' has no effect"):
        open_tokens(whole, format="raw")
    with pytest.raises(TypeError, match="source 0 of a mixture must be a corpus"):
        Mixture([(TOKENS, 1)])


def test_a_memmap_whose_path_leads_elsewhere_is_refused(path, tmp_path):
    whole = np.memmap(path, "u2", "r")
    for others, message in (
        (TOKENS[:-1], "it has 9999 tokens, but the memmap has token 9999"),
        (TOKENS + 1, "tokens 0 to 1024 are not those of the memmap"),
        (np.append(TOKENS[:-1], [0]).astype("u2"), "tokens 8976 to 10000 are not"),
    ):
        others.tofile(tmp_path / "other.bin")
        os.replace(tmp_path / "other.bin", path)
        with pytest.raises(FileChangedError, match=message) as caught:
            open_tokens(whole)
        assert caught.value.filename == str(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        open_tokens(whole)
