"""`documents="boundaries"`: documents by tokens and by records, and the loss mask, against naive loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pagestream
from pagestream import Mixture, TokenLoader, open_tokens

from support.late_device import StagedOnCpu
from support.token_files import write_shards, write_tokens

# With few ids, markers follow one another and stand at both ends of rows.
IDS, MARK = 6, 3
ROW = 23


def corpus_of(folder, *, seed=0, dtype="<u2", mmap_mode="auto"):
    """Returns random tokens, and a corpus of them in three files."""
    tokens = np.random.default_rng(seed).integers(0, IDS, 3000).astype(dtype)
    paths = write_shards(folder, tokens, [700, 1300, 1000])
    return tokens, open_tokens(paths, dtype=dtype, format="raw", mmap_mode=mmap_mode)


def documents_of(tokens, marker):
    """Returns the positions where documents begin, computed by a single loop."""
    if marker == "end_token":
        return {place + 1 for place, token in enumerate(tokens) if token == MARK}
    return {place for place, token in enumerate(tokens) if token == MARK}


def expected_of(rows, starts, length):
    """Returns bounds, position ids and mask of a batch, by a single loop over the first tokens of its
    rows."""
    bounds, positions, mask = [], [], []
    for row, first in enumerate(rows):
        for column in range(length):
            if column == 0 or first + column in starts:
                bounds.append(row * length + column)
            positions.append(row * length + column - bounds[-1])
            mask.append(first + column + 1 not in starts)
    return [*bounds, len(rows) * length], positions, mask


def assert_is_expected(batch, rows, starts, length):
    bounds, positions, mask = expected_of(rows, starts, length)
    assert batch.cu_seqlens.tolist() == bounds
    assert batch.position_ids.reshape(-1).tolist() == positions
    assert batch.loss_mask.reshape(-1).tolist() == mask
    assert batch.loss_mask.shape == batch.x.shape
    assert batch.max_seqlen == max(np.diff(bounds), default=0)


@pytest.mark.parametrize("marker", ["end_token", "begin_token"])
@pytest.mark.parametrize("target", ["shift", "block", "none"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "raw"])
@pytest.mark.parametrize("mmap_mode", ["auto", "read"])
def test_documents_by_a_token_are_those_of_a_naive_loop(tmp_path, marker, target, dtype, mmap_mode):
    tokens, corpus = corpus_of(tmp_path, mmap_mode=mmap_mode)
    options = {"sequence_length": ROW, "batch_size": 5, "order": "sequential", "epochs": 1, "target": target}
    first, ends = 0, []
    with TokenLoader(
        corpus, **options, documents="boundaries", dtype=dtype, drop_last=False, **{marker: MARK}
    ) as loader:
        for batch in loader:
            rows = [first + row * loader.stride for row in range(len(batch.x))]
            assert_is_expected(batch, rows, documents_of(tokens, marker), ROW)
            for row, start in zip(batch.x, rows, strict=True):
                assert np.array_equal(row, tokens[start : start + ROW])
            ends += batch.loss_mask[:, -1].tolist()
            first = rows[-1] + loader.stride
    assert set(ends) == {True, False}
    assert first + loader.stride > len(tokens) - ROW


@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<i8", "<u8"])
@pytest.mark.parametrize("marker", ["end_token", "begin_token"])
def test_every_type_of_file_is_searched(tmp_path, dtype, marker):
    # A row is longer than a block of any type, so that borders also fall on the edges of blocks.
    length, repeats = 20_000, 7
    tokens, corpus = corpus_of(tmp_path, dtype=dtype)
    tokens = np.tile(tokens, repeats)
    paths = [shard.path for shard in corpus.shards] * repeats
    corpus = open_tokens(paths, dtype=dtype, format="raw")
    options = {"sequence_length": length, "batch_size": 1, "documents": "boundaries", "order": "sequential"}
    with TokenLoader(corpus, **options, **{marker: MARK}) as loader:
        assert_is_expected(next(loader), [0], documents_of(tokens, marker), length)


@pytest.mark.parametrize(
    ("row", "bounds", "mask"),
    [
        ([0, 0, 0, 0], [0, 4], [1, 1, 1, 1]),
        ([9, 0, 0, 0], [0, 1, 4], [0, 1, 1, 1]),
        ([0, 0, 0, 9], [0, 4], [1, 1, 1, 0]),
        ([0, 9, 9, 0], [0, 2, 3, 4], [1, 0, 0, 1]),
        ([9, 9, 9, 9], [0, 1, 2, 3, 4], [0, 0, 0, 0]),
    ],
)
def test_end_tokens_at_each_place_of_a_row(tmp_path, row, bounds, mask):
    path = write_tokens(tmp_path / "t.bin", np.array([*row, 9], "<u2"))
    for target in ("shift", "none"):
        options = {"sequence_length": 4, "batch_size": 1, "target": target, "documents": "boundaries"}
        with TokenLoader(path, **options, end_token=9, order="sequential") as loader:
            batch = next(loader)
        assert batch.cu_seqlens.tolist() == bounds
        assert batch.loss_mask.tolist() == [[bool(kept) for kept in mask]]


@pytest.mark.parametrize(
    ("row", "bounds", "mask"),
    [
        ([0, 0, 0, 0, 0], [0, 4], [1, 1, 1, 1]),
        ([9, 0, 0, 0, 0], [0, 4], [1, 1, 1, 1]),
        ([0, 0, 0, 9, 0], [0, 3, 4], [1, 1, 0, 1]),
        ([0, 0, 0, 0, 9], [0, 4], [1, 1, 1, 0]),
        ([9, 9, 9, 9, 9], [0, 1, 2, 3, 4], [0, 0, 0, 0]),
    ],
)
def test_begin_tokens_at_each_place_of_a_row(tmp_path, row, bounds, mask):
    path = write_tokens(tmp_path / "t.bin", np.array(row, "<u2"))
    for target in ("shift", "none"):
        options = {"sequence_length": 4, "batch_size": 1, "target": target, "documents": "boundaries"}
        with TokenLoader(path, **options, begin_token=9, order="sequential") as loader:
            batch = next(loader)
        assert batch.cu_seqlens.tolist() == bounds
        assert batch.loss_mask.tolist() == [[bool(kept) for kept in mask]]


@pytest.mark.parametrize("marker", ["end_token", "begin_token"])
def test_the_end_of_the_corpus_is_no_border(tmp_path, marker):
    part = open_tokens(write_tokens(tmp_path / "t.bin", np.array([0, 1, 2, 3, 9, 9], "<u2"))).part(0, 4)
    options = {"sequence_length": 4, "batch_size": 1, "target": "none", "documents": "boundaries"}
    with TokenLoader(part, **options, **{marker: 9}) as loader:
        assert next(loader).loss_mask.all()


@pytest.mark.parametrize("target", ["shift", "block", "none"])
def test_the_mask_of_recorded_documents_is_that_of_a_naive_loop(tmp_path, target):
    lengths = np.random.default_rng(0).integers(1, 12, 300)
    documents = [np.arange(length, dtype="u2") for length in lengths]
    pagestream.write_tokens(tmp_path / "corpus", documents, dtype="uint16", format="megatron")
    tokens = open_tokens(tmp_path / "corpus.idx")
    # The last document ends with the corpus.
    starts = set(np.cumsum(lengths)[:-1].tolist())
    options = {"sequence_length": ROW, "batch_size": 5, "order": "sequential", "epochs": 1, "target": target}
    first, ends = 0, []
    with TokenLoader(tokens, **options, documents="boundaries", drop_last=False) as loader:
        for batch in loader:
            rows = [first + row * loader.stride for row in range(len(batch.x))]
            assert_is_expected(batch, rows, starts, ROW)
            ends += batch.loss_mask[:, -1].tolist()
            first = rows[-1] + loader.stride
    assert set(ends) == {True, False}


def test_a_token_takes_the_place_of_records(tmp_path):
    documents = [np.array([1, 2, 9]), np.array([3, 9, 4, 5])]
    pagestream.write_tokens(tmp_path / "corpus", documents, dtype="uint16", format="megatron")
    options = {"sequence_length": 6, "batch_size": 1, "documents": "boundaries", "order": "sequential"}
    with TokenLoader(tmp_path / "corpus.idx", **options) as loader:
        assert next(loader).cu_seqlens.tolist() == [0, 3, 6]
    with TokenLoader(tmp_path / "corpus.idx", **options, end_token=9) as loader:
        assert next(loader).cu_seqlens.tolist() == [0, 3, 5, 6]
    with TokenLoader(tmp_path / "corpus.idx", **options, begin_token=5) as loader:
        batch = next(loader)
        assert batch.cu_seqlens.tolist() == [0, 6]
        assert batch.loss_mask.tolist() == [[True] * 5 + [False]]


def test_the_bounds_of_tokens_are_padded_to_a_fixed_shape(tmp_path):
    _, corpus = corpus_of(tmp_path)
    options = {"sequence_length": ROW, "batch_size": 2, "documents": "boundaries", "end_token": MARK}
    with TokenLoader(corpus, **options, seed=1) as loader:
        bounds = next(loader).cu_seqlens
    with TokenLoader(corpus, **options, seed=1, max_documents=40) as loader:
        padded = next(loader).cu_seqlens
    assert padded.shape == (41,)
    assert padded.tolist() == bounds.tolist() + [2 * ROW] * (41 - len(bounds))
    with (
        TokenLoader(corpus, **options, max_documents=2) as loader,
        pytest.raises(ValueError, match="max_documents is 2"),
    ):
        next(loader)


def test_every_source_of_a_mixture_is_searched(tmp_path):
    # The first token of a row encodes its source and its position there.
    length, sources = 8, []
    for name, dtype in (("a", "<u2"), ("b", "<u4")):
        tokens = np.random.default_rng(ord(name)).choice([0, MARK], 4000).astype(dtype)
        tokens[::length] = np.arange(500) + (1000 if name == "b" else 100)
        path = write_tokens(tmp_path / name, tokens)
        sources.append((tokens, open_tokens(path, dtype=dtype, format="raw")))
    mixture = Mixture([(corpus, 0.5) for _, corpus in sources])
    options = {"sequence_length": length, "batch_size": 6, "target": "none", "documents": "boundaries"}
    with TokenLoader(mixture, **options, epochs=None, end_token=MARK) as loader:
        for _ in range(20):
            batch = next(loader)
            expected = []
            for row in batch.x:
                is_b = int(row[0]) >= 1000
                first = (int(row[0]) - (1000 if is_b else 100)) * length
                starts = documents_of(sources[is_b][0], "end_token")
                expected.append(expected_of([first], starts, length))
            assert batch.position_ids.tolist() == [positions for _, positions, _ in expected]
            assert batch.loss_mask.tolist() == [mask for _, _, mask in expected]
            assert len(batch.cu_seqlens) == sum(len(bounds) - 1 for bounds, _, _ in expected) + 1


def test_a_resumed_loader_goes_on_with_the_same_documents(tmp_path):
    _, corpus = corpus_of(tmp_path)
    options = {"sequence_length": ROW, "documents": "boundaries", "begin_token": MARK, "seed": 4}
    with TokenLoader(corpus, batch_size=4, **options) as loader:
        next(loader)
        state = loader.state_dict()
        later = next(loader)
    with TokenLoader(corpus, batch_size=4, **options) as loader:
        loader.load_state_dict(state)
        resumed = next(loader)
    for name, array in later._asdict().items():
        assert np.array_equal(getattr(resumed, name), array), name


@pytest.mark.parametrize("loader_type", [pagestream.torch.TokenLoader, StagedOnCpu])
@pytest.mark.parametrize("dtype", ["int64", "int32", "raw"])
@pytest.mark.parametrize("target", ["shift", "none"])
def test_tensors_and_staged_batches_are_those_of_numpy(tmp_path, loader_type, dtype, target):
    _, corpus = corpus_of(tmp_path)
    options = {"sequence_length": ROW, "batch_size": 4, "documents": "boundaries", "end_token": MARK}
    options |= {"dtype": dtype, "target": target, "epochs": 1, "max_documents": 60}
    with TokenLoader(corpus, **options) as plain, loader_type(corpus, **options) as loader:
        for here, there in zip(plain, loader, strict=True):
            assert there.loss_mask.dtype == torch.bool
            assert there.cu_seqlens.dtype == torch.int32
            assert there.max_seqlen == here.max_seqlen
            for name in ("x", "y", "cu_seqlens", "position_ids", "loss_mask"):
                array, tensor = getattr(here, name), getattr(there, name)
                assert (tensor is None) == (array is None)
                assert array is None or np.array_equal(tensor.numpy(), array), name


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"end_token": 1}, ValueError, "end_token=1 has no effect without documents="),
        ({"begin_token": 1}, ValueError, "begin_token=1 has no effect without documents="),
        ({"documents": "boundaries"}, ValueError, "pass end_token=, .* or begin_token="),
        (
            {"documents": "boundaries", "end_token": 1, "begin_token": 2},
            ValueError,
            "end_token=1 and begin_token=2 exclude each other",
        ),
        ({"documents": "boundaries", "end_token": -1}, ValueError, "end_token must be at least 0, not -1"),
        ({"documents": "boundaries", "begin_token": 1.5}, TypeError, "begin_token must be an integer"),
        ({"documents": "boundaries", "end_token": 1 << 16}, ValueError, "uint16 tokens are at most 65535"),
        ({"documents": "boundaries", "begin_token": 1 << 63}, ValueError, "begin_token must be below 2"),
        ({"documents": "some", "end_token": 1}, ValueError, "documents"),
    ],
)
def test_tokens_that_cannot_tell_documents_apart_are_refused(tmp_path, options, error, message):
    _, corpus = corpus_of(tmp_path)
    with pytest.raises(error, match=message):
        TokenLoader(corpus, sequence_length=8, batch_size=1, **options)


def test_a_token_must_fit_in_every_source(tmp_path):
    small = open_tokens(
        write_tokens(tmp_path / "a", np.arange(100, dtype="<u2")), dtype="uint16", format="raw"
    )
    large = open_tokens(
        write_tokens(tmp_path / "b", np.arange(100, dtype="<u4")), dtype="uint32", format="raw"
    )
    options = {"sequence_length": 8, "batch_size": 1, "documents": "boundaries", "end_token": 100_257}
    TokenLoader(large, **options).close()
    with pytest.raises(ValueError, match="end_token=100257 does not occur"):
        TokenLoader(Mixture([(large, 0.5), (small, 0.5)]), **options)
