"""`vocabulary=`: ids outside the model's vocabulary raise errors before they reach a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pagestream
import pagestream.torch
from pagestream import Mixture, open_tokens
from pagestream.errors import FormatError
from pagestream.torch import TokenDataset

from support.token_files import write_shards, write_tokens

GOOD = np.arange(2000) % 100
LOADERS = [pagestream.TokenLoader, pagestream.torch.TokenLoader]


def read_all(loader_type, tokens, **options):
    given = {"sequence_length": 16, "batch_size": 4, "order": "sequential", "epochs": 1, "drop_last": False}
    with loader_type(tokens, **given | options) as loader:
        return list(loader)


@pytest.mark.parametrize("loader_type", LOADERS)
@pytest.mark.parametrize("dtype", ["int64", "int32", "raw"])
@pytest.mark.parametrize("mmap_mode", ["auto", "read"])
def test_a_greater_id_names_its_file_and_its_places(tmp_path, loader_type, dtype, mmap_mode):
    tokens = GOOD.astype("<u2")
    tokens[1207] = 100
    paths = write_shards(tmp_path, tokens, [500, 600, 900])
    corpus = open_tokens(paths, mmap_mode=mmap_mode)
    assert len(read_all(loader_type, corpus, vocabulary=101, dtype=dtype)) == 31
    assert len(read_all(loader_type, corpus, dtype=dtype)) == 31
    with pytest.raises(FormatError) as caught:
        read_all(loader_type, corpus, vocabulary=100, dtype=dtype)
    told = str(caught.value)
    assert paths[2] in told
    assert "token 1207 of the corpus (number 107 of this file) is 100" in told
    assert "vocabulary=100 has the ids 0 to 99" in told


def test_the_place_in_the_file_is_right_in_a_part(tmp_path):
    tokens = GOOD.astype("<u2")
    tokens[1207] = 100
    part = open_tokens(write_tokens(tmp_path / "t.bin", tokens)).part(0.5, 1)
    with pytest.raises(FormatError, match=r"token 207 of the corpus \(number 1207 of this file\) is 100"):
        read_all(pagestream.TokenLoader, part, vocabulary=100)


@pytest.mark.parametrize(
    ("dtype", "vocabulary"), [("i1", 128), ("<i2", 65_536), ("<i4", 1 << 40), ("<i8", 200)]
)
def test_a_negative_id_is_beyond_every_vocabulary(tmp_path, dtype, vocabulary):
    tokens = GOOD.astype(dtype)
    tokens[33] = -1
    corpus = open_tokens(write_tokens(tmp_path / "t.bin", tokens), dtype=dtype)
    for out in ("int64", "raw"):
        with pytest.raises(FormatError, match=r"token 33 of the corpus .* is -1"):
            read_all(pagestream.TokenLoader, corpus, vocabulary=vocabulary, dtype=out)


@pytest.mark.parametrize("target", ["shift", "block", "none"])
def test_the_target_of_a_window_is_checked_and_nothing_behind_it(tmp_path, target):
    tokens = GOOD[:33].astype("<u2")
    tokens[32] = 100
    path = write_tokens(tmp_path / "t.bin", tokens)
    options = {"sequence_length": 32, "batch_size": 1, "target": target, "vocabulary": 100}
    if target == "none":
        assert len(read_all(pagestream.TokenLoader, path, **options)) == 1
    else:
        with pytest.raises(FormatError, match="token 32 of the corpus"):
            read_all(pagestream.TokenLoader, path, **options)


def test_batches_in_front_of_the_wrong_one_are_delivered(tmp_path):
    tokens = GOOD.astype("<u2")
    tokens[1000] = 300
    path = write_tokens(tmp_path / "t.bin", tokens)
    with pagestream.TokenLoader(
        path, sequence_length=10, batch_size=1, order="sequential", vocabulary=100
    ) as loader:
        for start in range(0, 990, 10):
            assert next(loader).x[0, 0] == start % 100
        for _ in range(2):
            with pytest.raises(FormatError, match="token 1000"):
                next(loader)


def test_every_source_of_a_mixture_is_checked(tmp_path):
    good = open_tokens(write_tokens(tmp_path / "good.bin", GOOD.astype("<u2")))
    bad = open_tokens(write_tokens(tmp_path / "bad.bin", GOOD.astype("<u2") + 1))
    mixture = Mixture([(good, 0.5), (bad, 0.5)], exhausted="stop")
    with pytest.raises(FormatError, match=r"bad\.bin"):
        read_all(pagestream.TokenLoader, mixture, vocabulary=100)


@pytest.mark.parametrize("dtype", ["int64", "raw"])
def test_a_dataset_checks_the_items_that_are_taken(tmp_path, dtype):
    tokens = GOOD.astype("<u2")
    tokens[50] = 100
    dataset = TokenDataset(write_tokens(tmp_path / "t.bin", tokens), 8, dtype=dtype, vocabulary=100)
    assert dataset[41][1].tolist() == list(range(42, 50))
    with pytest.raises(FormatError, match=r"token 50 of the corpus .* is 100"):
        dataset[42]
    assert dataset.__getitems__([51])[0][0].dtype == (torch.int64 if dtype == "int64" else torch.uint16)


@pytest.mark.parametrize(("wrong", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError)])
def test_a_vocabulary_has_an_id(tmp_path, wrong, error):
    path = write_tokens(tmp_path / "t.bin", GOOD.astype("<u2"))
    with pytest.raises(error, match="vocabulary"):
        pagestream.TokenLoader(path, sequence_length=8, batch_size=1, vocabulary=wrong)
    with pytest.raises(error, match="vocabulary"):
        TokenDataset(path, 8, vocabulary=wrong)


@pytest.mark.parametrize("name", ["end_token", "begin_token"])
@pytest.mark.parametrize("loader_type", LOADERS)
def test_a_token_that_marks_documents_is_in_the_vocabulary(tmp_path, loader_type, name):
    path = write_tokens(tmp_path / "t.bin", GOOD.astype("<u2"))
    options = {"sequence_length": 8, "batch_size": 1, "vocabulary": 100, "documents": "boundaries"}
    with loader_type(path, **options, **{name: 99}) as loader:
        next(loader)
    for token in (100, 60_000):
        with pytest.raises(ValueError, match=f"{name}={token} is not one of the ids 0 to 99 of vocabulary"):
            loader_type(path, **options, **{name: token})
