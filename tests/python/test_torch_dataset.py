"""`pagestream.torch.TokenDataset`, on its own and under torch's DataLoader."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler

from pagestream import open_tokens
from pagestream.errors import FileChangedError, FormatError, MappedReadError
from pagestream.torch import TokenDataset

from support import cut_under_workers
from support.token_files import TOKEN_TYPES, shard_lengths, tokens_of, write_shards, write_tokens
from support.torch_process import run_torch

# DataLoader forks a process that has threads, and Python warns about that.
allow_fork = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
TOKENS = tokens_of("<u2", 1000)


@pytest.fixture
def path(tmp_path):
    """Returns a raw file of `TOKENS`."""
    return write_tokens(tmp_path / "tokens.bin", TOKENS)


def windows(tokens, length, stride, target):
    """Returns every window by naive slicing, as (x, y) or as x alone."""
    span = length + (target != "none")
    starts = range(0, len(tokens) - span + 1, stride)
    if target == "none":
        return [tokens[start : start + length] for start in starts]
    return [(tokens[start : start + length], tokens[start + 1 : start + 1 + length]) for start in starts]


def parts(item):
    return item if isinstance(item, tuple) else (item,)


def assert_same(item, expected, dtype):
    assert len(parts(item)) == len(parts(expected))
    for part, tokens in zip(parts(item), parts(expected), strict=True):
        assert part.is_contiguous()
        np.testing.assert_array_equal(part.numpy(), tokens.astype(dtype), strict=True)


@settings(max_examples=150)
@given(
    lengths=shard_lengths,
    source=st.sampled_from(TOKEN_TYPES),
    format=st.sampled_from(["raw", "npy"]),
    mode=st.sampled_from(["auto", "read"]),
    length=st.integers(1, 20),
    stride=st.none() | st.integers(1, 30),
    target=st.sampled_from(["shift", "block", "none"]),
    dtype=st.sampled_from(["int64", "int32", "raw"]),
)
def test_items_are_the_naive_slices(lengths, source, format, mode, length, stride, target, dtype):
    tokens = tokens_of(source, sum(lengths))
    if dtype != "raw":
        tokens = np.clip(tokens.astype(object), *limits(dtype)).astype(source)
    expected = windows(tokens, length, stride or (length + 1 if target == "block" else 1), target)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_shards(folder, tokens, lengths, format)
        corpus = open_tokens(paths, dtype=source, format=format, mmap_mode=mode)
        options = {"target": target, "dtype": dtype, "stride": stride}
        if not expected:
            with pytest.raises(ValueError, match=f"> has {len(tokens)};"):
                TokenDataset(corpus, length, **options)
            return
        dataset = TokenDataset(corpus, length, **options)
        assert len(dataset) == len(expected)
        numbers = [*range(len(expected)), 0, -1, -len(expected)]
        of_type = np.dtype(source if dtype == "raw" else dtype)
        for number, item in zip(numbers, dataset.__getitems__(numbers), strict=True):
            assert_same(item, expected[number], of_type)
            assert_same(dataset[number], expected[number], of_type)


def limits(dtype):
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def test_there_are_n_minus_t_windows(path):
    dataset = TokenDataset(path, 64)
    assert len(dataset) == 1000 - 64
    assert (dataset.stride, dataset.sequence_length) == (1, 64)


def test_blocks_share_no_token(path):
    dataset = TokenDataset(path, 9, target="block")
    assert (len(dataset), dataset.stride) == (100, 10)
    seen = [torch.cat([x, y[-1:]]) for x, y in dataset]
    np.testing.assert_array_equal(torch.cat(seen).numpy(), TOKENS)


@pytest.mark.parametrize("index", [990, -991, 1 << 63, -(1 << 63), 1 << 64])
def test_a_window_outside_is_an_index_error_that_names_it(path, index):
    dataset = TokenDataset(path, 10)
    with pytest.raises(IndexError, match=f"window {index} of 990"):
        dataset[index]
    with pytest.raises(IndexError, match=f"window {index} of 990"):
        dataset.__getitems__([0, index])


@pytest.mark.parametrize("index", [1.0, "1", None, slice(0, 2)], ids=str)
def test_another_kind_of_index_is_a_type_error(path, index):
    with pytest.raises(TypeError):
        TokenDataset(path, 10)[index]


def test_iterating_ends_after_the_last_window(path):
    assert len(list(TokenDataset(path, 900))) == 100


@pytest.mark.parametrize("target", ["shift", "none"])
def test_getitems_gives_rows_of_one_block_that_nobody_else_has(path, target):
    dataset = TokenDataset(path, 8, target=target)
    first, again = dataset.__getitems__([5, 5, 700]), dataset.__getitems__([5])
    assert isinstance(first, list)
    for part in range(len(parts(first[0]))):
        rows = [parts(item)[part] for item in first]
        assert len({row.untyped_storage().data_ptr() for row in rows}) == 1
        assert [row.storage_offset() for row in rows] == [0, 8, 16]
        rows[0].fill_(-1)
        np.testing.assert_array_equal(rows[1].numpy(), parts(again[0])[part].numpy())
    assert dataset.__getitems__([]) == []


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "int32", "int8"])
def test_raw_gives_the_type_of_the_file(tmp_path, dtype):
    path = write_tokens(tmp_path / "t", tokens_of(dtype, 100))
    x, y = TokenDataset(open_tokens(path, dtype=dtype), 4, dtype="raw")[0]
    assert x.dtype == y.dtype == getattr(torch, dtype)


LARGE = 1 << 31


@pytest.mark.parametrize(
    ("source", "token", "dtype"),
    [
        ("<u4", LARGE, "int32"),
        ("<u4", (1 << 32) - 1, "int32"),
        ("<i8", LARGE, "int32"),
        ("<i8", -LARGE - 1, "int32"),
        ("<u8", LARGE, "int32"),
        ("<u8", 1 << 63, "int64"),
    ],
)
@pytest.mark.parametrize("place", [0, 5, 9, 10, 19])
def test_a_token_too_large_for_the_batch_is_refused_with_its_place(tmp_path, source, token, dtype, place):
    tokens = np.arange(20).astype(source)
    tokens[place] = token
    paths = write_shards(tmp_path, tokens, [10, 10])
    dataset = TokenDataset(open_tokens(paths, dtype=source), 4, dtype=dtype)
    holds = range(max(place - 4, 0), min(place, len(dataset) - 1) + 1)
    for number in range(len(dataset)):
        if number in holds:
            with pytest.raises(FormatError, match=f"token {place} "):
                dataset[number]
        else:
            np.testing.assert_array_equal(dataset[number][0].numpy(), tokens[number : number + 4])


@pytest.mark.parametrize(("place", "shard"), [(0, 0), (9, 0), (10, 2), (19, 2)])
def test_a_token_too_large_for_the_batch_is_refused_with_its_file(tmp_path, place, shard):
    tokens = np.arange(20, dtype="<u4")
    tokens[place] = LARGE
    paths = write_shards(tmp_path, tokens, [10, 0, 10])
    dataset = TokenDataset(open_tokens(paths, dtype="u4"), 19, dtype="int32")
    with pytest.raises(FormatError) as caught:
        dataset[0]
    assert str(caught.value).startswith(f"{paths[shard]}: ")


@pytest.mark.parametrize("token", [LARGE - 1, LARGE, (1 << 32) - 1])
def test_large_uint32_tokens_are_kept_where_there_is_room(tmp_path, token):
    path = write_tokens(tmp_path / "t", np.full(4, token, "<u4"))
    for dtype in ["int64", "raw"] if token >= LARGE else ["int64", "int32", "raw"]:
        x, y = TokenDataset(open_tokens(path, dtype="u4"), 3, dtype=dtype)[0]
        assert x.tolist() == y.tolist() == [token] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequence_length": 1000}, "takes 1001 tokens .*tokens.bin> has 1000"),
        ({"sequence_length": 1001, "target": "none"}, "takes 1001 tokens .*tokens.bin> has 1000"),
        ({"sequence_length": 1 << 62}, "tokens.bin> has 1000"),
        ({"sequence_length": 0}, "sequence_length must be at least 1, not 0"),
        ({"sequence_length": -1}, "sequence_length must be at least 1, not -1"),
        ({"sequence_length": 4, "stride": 0}, "stride must be at least 1, not 0"),
        ({"sequence_length": 4, "stride": -3}, "stride must be at least 1, not -3"),
        ({"sequence_length": 4, "target": "next"}, "target"),
        ({"sequence_length": 4, "dtype": "float32"}, "dtype"),
    ],
)
def test_arguments_out_of_range_are_value_errors(path, arguments, message):
    with pytest.raises(ValueError, match=message):
        TokenDataset(path, **arguments)


def test_the_longest_window_that_fits_is_taken(path):
    dataset = TokenDataset(path, 999, stride=1 << 62)
    assert len(dataset) == 1
    assert_same(dataset[0], (TOKENS[:-1], TOKENS[1:]), np.int64)
    assert len(TokenDataset(path, 1000, target="none")) == 1


@pytest.mark.parametrize("arguments", [{"sequence_length": 4.0}, {"sequence_length": 4, "stride": 1.0}])
def test_floats_are_type_errors(path, arguments):
    with pytest.raises(TypeError):
        TokenDataset(path, **arguments)


def test_a_pickle_ships_no_tokens(path):
    dataset = TokenDataset(path, 16, stride=3, target="block", dtype="int32")
    shipped = pickle.dumps(dataset)
    assert len(shipped) < 1000
    again = pickle.loads(shipped)
    assert len(again) == len(dataset)
    for ours, theirs in zip(again, dataset, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_a_pickle_of_a_file_that_changed_its_size_is_refused(path):
    shipped = pickle.dumps(TokenDataset(path, 16))
    os.truncate(path, 1000)
    with pytest.raises(FileChangedError) as caught:
        pickle.loads(shipped)
    assert caught.value.filename == path


def test_a_file_that_was_cut_is_an_error_with_the_path(path):
    dataset = TokenDataset(path, 16)
    os.truncate(path, 100)
    for index in (-1, 0):  # window 0 still exists, but reading it reveals the truncation too
        with pytest.raises(MappedReadError, match="truncated") as caught:
            dataset[index]
        assert caught.value.filename == path
    with pytest.raises(FileChangedError):
        dataset.check()


# Under DataLoader


def collect(loader, length):
    """Returns all rows of a loader, as (x, y) tuples."""
    batches = [(x.numpy(), y.numpy()) for x, y in loader]
    assert all(x.shape == y.shape == (len(x), length) for x, y in batches)
    return [(tuple(row), tuple(target)) for x, y in batches for row, target in zip(x, y, strict=True)]


WORKERS = [
    pytest.param(0, None, id="none"),
    pytest.param(2, "fork", marks=allow_fork, id="fork"),
    pytest.param(2, "spawn", id="spawn"),
]


@pytest.mark.parametrize(("workers", "context"), WORKERS)
def test_a_loader_gives_each_window_once_in_order(tmp_path, workers, context):
    tokens = tokens_of("<u4", 3000)
    paths = write_shards(tmp_path, tokens, [1000, 0, 500, 1500])
    dataset = TokenDataset(open_tokens(paths, dtype="u4"), 32, stride=7)
    loader = DataLoader(dataset, batch_size=16, num_workers=workers, multiprocessing_context=context)
    expected = [(tuple(x.tolist()), tuple(y.tolist())) for x, y in windows(tokens, 32, 7, "shift")]
    assert collect(loader, 32) == expected


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=allow_fork)])
def test_a_shuffled_loader_gives_each_window_once(path, workers):
    dataset = TokenDataset(path, 10)
    context = "fork" if workers else None
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(
        dataset, batch_size=33, sampler=sampler, num_workers=workers, multiprocessing_context=context
    )
    given_out = collect(loader, 10)
    expected = [(tuple(x.tolist()), tuple(y.tolist())) for x, y in windows(TOKENS, 10, 1, "shift")]
    assert given_out != expected
    assert sorted(given_out) == sorted(expected)


@pytest.mark.parametrize("dtype", ["raw", "int32"])
def test_a_loader_collates_the_other_types(path, dtype):
    x, y = next(iter(DataLoader(TokenDataset(path, 10, dtype=dtype), batch_size=4)))
    assert x.dtype == y.dtype == (torch.uint16 if dtype == "raw" else torch.int32)
    np.testing.assert_array_equal(x.numpy(), np.stack([TOKENS[i : i + 10] for i in range(4)]))


def test_a_loader_gets_its_batches_from_one_native_call_each(path, monkeypatch):
    dataset = TokenDataset(path, 10, stride=10)
    calls = []
    gather = TokenDataset.__getitems__
    monkeypatch.setattr(
        TokenDataset,
        "__getitems__",
        lambda self, indices: calls.append(list(indices)) or gather(self, indices),
    )
    assert len(collect(DataLoader(dataset, batch_size=40), 10)) == 99
    assert calls == [list(range(40)), list(range(40, 80)), list(range(80, 99))]


def run_cut(path, kind, context="fork", guard="on"):
    """Runs a process with two workers that read a file of 32 MiB during its truncation."""
    with open(path, "wb") as file:
        file.truncate(32 << 20)
    environment = {**os.environ, "PAGESTREAM_FAULT_GUARD": guard}
    return run_torch(
        Path(cut_under_workers.__file__), path, kind, context, env=environment, has_brief_end=True
    )


@pytest.mark.parametrize(("context", "guard"), [("fork", "on"), ("fork", "off"), ("spawn", "on")])
def test_a_file_cut_under_two_workers_is_an_error_that_names_it_in_a_parent_that_lives(
    tmp_path, context, guard
):
    path = str(tmp_path / "cut.bin")
    done = run_cut(path, "pagestream", context, guard)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("MappedReadError True\n"), done.stdout
    assert path in done.stdout
    assert "truncated" in done.stdout
    assert "alive after" in done.stdout
    assert "Bus error" not in done.stdout + done.stderr


def test_the_same_kills_a_worker_that_reads_by_memmap(tmp_path):
    """As a control: torch's bus error handler is installed and would have killed our worker too."""
    done = run_cut(str(tmp_path / "cut.bin"), "memmap")
    # Another error is raised if the worker dies while the parent receives a batch's descriptor from it.
    assert done.stdout.split()[0] in {"RuntimeError", "ConnectionResetError", "EOFError"}, done.stdout
    assert "Unexpected bus error encountered in worker" in done.stderr


# torchdata uses a name that torch has deprecated.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_goes_on_in_the_middle(tmp_path, workers):
    from torchdata.stateful_dataloader import StatefulDataLoader

    path = tmp_path / "tokens.bin"
    np.arange(400, dtype="u2").tofile(path)

    def loader():
        return StatefulDataLoader(TokenDataset(path, 8, stride=8), batch_size=4, num_workers=workers)

    first = loader()
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    rest = [x.tolist() for x, _ in batches]
    again = loader()
    again.load_state_dict(state)
    assert [x.tolist() for x, _ in again] == rest
    assert rest[0][0][0] == 3 * 4 * 8


def test_equal_datasets_have_one_repr(tmp_path):
    """Grain compares the repr when it restores a state."""
    path = tmp_path / "tokens.bin"
    np.arange(400, dtype="u2").tofile(path)
    one, other = TokenDataset(path, 8, stride=4), TokenDataset(path, 8, stride=4)
    assert repr(one) == repr(other) == repr(pickle.loads(pickle.dumps(one)))
    for options in ({"stride": 5}, {"target": "none", "stride": 4}, {"dtype": "int32", "stride": 4}):
        assert repr(TokenDataset(path, 8, **options)) != repr(one)
    assert repr(TokenDataset(path, 9, stride=4)) != repr(one)
    np.arange(404, dtype="u2").tofile(path)
    assert repr(TokenDataset(path, 8, stride=4)) != repr(one)


def test_a_dataset_of_a_path_opens_it_as_it_is_told(tmp_path):
    path = tmp_path / "tokens.bin"
    np.arange(400, dtype="u2").tofile(path)
    assert TokenDataset(path, 8, mmap_mode="read").tokens.mode == "read"
    with pytest.raises(ValueError, match="mmap_mode='read' has no effect"):
        TokenDataset(open_tokens(path), 8, mmap_mode="read")


def test_windows_are_gathered_on_the_host_whatever_the_default_device_is(tmp_path):
    path = tmp_path / "tokens.bin"
    np.arange(400, dtype="u2").tofile(path)
    dataset = TokenDataset(path, 4)
    torch.set_default_device("meta")
    try:
        x, y = dataset[10]
    finally:
        torch.set_default_device(None)
    assert (x.tolist(), y.tolist()) == ([10, 11, 12, 13], [11, 12, 13, 14])
