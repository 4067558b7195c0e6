"""`DistributedTokenSampler` compared with torch's sampler, and its state."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from pagestream import _native, open_tokens
from pagestream.errors import StateMismatchError
from pagestream.torch import DistributedTokenSampler, TokenDataset


def all_ranks(cls, length, ranks, epoch=0, **arguments):
    samplers = [cls(range(length), ranks, rank, **arguments) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return samplers, [list(sampler) for sampler in samplers]


@given(st.integers(1, 5000), st.integers(1, 12), st.booleans(), st.integers(0, 3))
@settings(max_examples=60)
def test_counts_and_coverage_are_those_of_torch(length, ranks, drop_last, epoch):
    ours, indices = all_ranks(DistributedTokenSampler, length, ranks, epoch, drop_last=drop_last, seed=7)
    if length >= ranks or not drop_last:  # torch fails on an empty share
        theirs, expected = all_ranks(DistributedSampler, length, ranks, epoch, drop_last=drop_last)
        assert [len(sampler) for sampler in ours] == [len(sampler) for sampler in theirs]
        assert [len(part) for part in indices] == [len(part) for part in expected]
    order = [index for row in itertools.zip_longest(*indices) for index in row if index is not None]
    whole = _native.permuted(length, 7, epoch, 0, 1, length)
    assert sorted(whole) == list(range(length))
    # As in torch, the indices are dealt out in turn and padded from the start.
    assert order == list(itertools.islice(itertools.cycle(whole), ours[0].total_size))


@given(st.integers(1, 3000), st.integers(1, 12), st.booleans())
@settings(max_examples=60)
def test_without_shuffling_the_indices_are_those_of_torch(length, ranks, drop_last):
    if drop_last and length < ranks:
        length += ranks
    arguments = {"shuffle": False, "drop_last": drop_last}
    _, ours = all_ranks(DistributedTokenSampler, length, ranks, **arguments)
    _, theirs = all_ranks(DistributedSampler, length, ranks, **arguments)
    assert ours == theirs


def test_epochs_and_seeds_differ_and_repeat():
    def order(epoch, seed):
        sampler = DistributedTokenSampler(range(500), 1, 0, seed=seed)
        sampler.set_epoch(epoch)
        return tuple(sampler)

    assert len({order(0, 0), order(1, 0), order(0, 1), order(1, 1)}) == 4
    assert order(3, 4) == order(3, 4)


@given(st.integers(1, 4000), st.integers(1, 5), st.integers(0, 4000), st.booleans())
@settings(max_examples=60)
def test_a_sampler_resumes_where_the_state_was_taken(length, ranks, taken, shuffle):
    def sampler():
        return DistributedTokenSampler(range(length), ranks, ranks - 1, shuffle=shuffle, seed=3)

    first, second = sampler(), sampler()
    first.set_epoch(2)
    indices = iter(first)
    before = list(itertools.islice(indices, taken))
    state = first.state_dict()
    second.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert second.state_dict() == state
    rest = list(second)
    assert rest == list(indices)
    assert len(before) + len(rest) == len(first)
    # The following epoch is complete.
    second.set_epoch(3)
    assert len(list(second)) == len(second)


def test_setting_the_epoch_of_the_state_keeps_the_position_and_another_drops_it():
    sampler = DistributedTokenSampler(range(10), 1, 0, shuffle=False)
    state = {**sampler.state_dict(), "epoch": 1, "samples_consumed": 7}
    sampler.load_state_dict(state)
    sampler.set_epoch(1)
    assert list(sampler) == [7, 8, 9]
    sampler.load_state_dict(state)
    sampler.set_epoch(2)
    assert list(sampler) == list(range(10))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 0),
        ("length", 9),
        ("num_replicas", 2),
        ("shuffle", False),
        ("seed", 1),
        ("drop_last", True),
    ],
)
def test_a_state_of_other_settings_is_refused(name, value):
    sampler = DistributedTokenSampler(range(10), 1, 0)
    with pytest.raises(StateMismatchError, match=name):
        sampler.load_state_dict({**sampler.state_dict(), name: value})


@pytest.mark.parametrize("wrong", [{"samples_consumed": 11}, {"samples_consumed": -1}, {"epoch": -1}])
def test_a_position_out_of_range_is_refused(wrong):
    sampler = DistributedTokenSampler(range(10), 1, 0)
    with pytest.raises(StateMismatchError):
        sampler.load_state_dict({**sampler.state_dict(), **wrong})


def test_a_state_counts_the_indices_of_all_ranks():
    sampler = DistributedTokenSampler(range(10), 2, 1, shuffle=False)
    indices = iter(sampler)
    assert [next(indices), next(indices)] == [1, 3]
    state = sampler.state_dict()
    assert state["samples_consumed"] == 4
    other = DistributedTokenSampler(range(10), 2, 0, shuffle=False)
    other.load_state_dict(state)
    assert list(other) == [4, 6, 8]
    with pytest.raises(StateMismatchError, match="multiple of num_replicas"):
        other.load_state_dict({**state, "samples_consumed": 3})


def test_ranks_come_from_the_environment(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="pass num_replicas=1 and rank=0 for one process"):
        DistributedTokenSampler(range(8))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert list(DistributedTokenSampler(range(8), shuffle=False)) == [3, 7]
    assert DistributedTokenSampler(range(8), 2, 1).rank == 1
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK"):
        DistributedTokenSampler(range(8))


@pytest.mark.parametrize(("replicas", "rank"), [(2, 2), (2, -1), (0, 0)])
def test_a_rank_out_of_range_is_refused(replicas, rank):
    with pytest.raises(ValueError, match=f"rank {rank} of {replicas}"):
        DistributedTokenSampler(range(8), replicas, rank)


def test_it_is_a_distributed_sampler_also_of_nothing():
    ours, indices = all_ranks(DistributedTokenSampler, 0, 3)
    assert all(isinstance(sampler, DistributedSampler) for sampler in ours)
    theirs, expected = all_ranks(DistributedSampler, 0, 3)
    assert indices == expected == [[], [], []]
    assert [len(sampler) for sampler in ours] == [len(sampler) for sampler in theirs] == [0, 0, 0]


def test_a_negative_epoch_is_refused():
    with pytest.raises(ValueError, match="-1"):
        DistributedTokenSampler(range(2), 1, 0).set_epoch(-1)
    with pytest.raises(ValueError, match="epoch must be below"):
        DistributedTokenSampler(range(2), 1, 0).set_epoch(1 << 64)


def test_a_sampler_as_long_as_can_be_begins_at_once():
    class Long:
        def __len__(self):
            return (1 << 63) - 1

    sampler = DistributedTokenSampler(Long(), 8, 5)
    some = list(itertools.islice(sampler, 3000))
    assert len(set(some)) == 3000
    assert some == _native.permuted((1 << 63) - 1, 0, 0, 5, 8, 3000)


def test_a_data_loader_takes_it():
    sampler = DistributedTokenSampler(range(100), 2, 1)
    batches = DataLoader(range(100), batch_size=8, sampler=sampler)
    assert [index for batch in batches for index in batch.tolist()] == list(sampler)


# torchdata uses a name that torch has deprecated.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_data_loader_resumes_it():
    import torchdata.stateful_dataloader as torchdata

    def loader():
        sampler = DistributedTokenSampler(range(100), 2, 1)
        return torchdata.StatefulDataLoader(range(100), batch_size=8, sampler=sampler)

    first = loader()
    batches = iter(first)
    next(batches), next(batches)
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert [batch.tolist() for batch in second] == [batch.tolist() for batch in batches]


def test_a_permutation_begins_again_after_its_end():
    whole = _native.permuted(10, 0, 0, 0, 1, 10)
    assert sorted(whole) == list(range(10))
    assert _native.permuted(10, 0, 0, 1, 4, 6) == [whole[place] for place in (1, 5, 9, 3, 7, 1)]
    assert _native.permuted(10, 0, 0, 99, (1 << 64) - 1, 2) == [whole[9], whole[4]]
    assert _native.permuted(10, 0, 0, 99, 4, 0) == []
    with pytest.raises(ValueError, match="2\\^63"):
        _native.permuted(0, 0, 0, 0, 1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: None, "a state must be a dict from state_dict.., not None"),
        (lambda _: [1], "a state must be a dict from state_dict.., not "),
        (lambda _: {}, "the state was taken with version None"),
        (
            lambda state: {name: state[name] for name in state if name != "epoch"},
            "epoch must be an integer, not None",
        ),
        (
            lambda state: {name: state[name] for name in state if name != "samples_consumed"},
            "samples_consumed must be .* not None",
        ),
        (lambda state: state | {"epoch": 1 << 64}, "epoch must be below"),
        (lambda state: state | {"samples_consumed": "3"}, "samples_consumed must be an integer, not '3'"),
    ],
)
def test_an_invalid_state_is_refused_and_changes_nothing(change, message):
    sampler = DistributedTokenSampler(range(10), 1, 0, shuffle=False)
    with pytest.raises(StateMismatchError, match=message):
        sampler.load_state_dict(change(sampler.state_dict()))
    assert list(sampler) == list(range(10))


def test_one_rank_is_the_plain_shuffling_sampler_of_one_process(tmp_path, monkeypatch):
    """No variable names a rank. Training and validation are parts of one file."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "t.bin"
    np.arange(1000, dtype="u2").tofile(path)
    tokens = open_tokens(path)
    train = TokenDataset(tokens.part(0, 0.9), 8, stride=8)
    sampler = DistributedTokenSampler(train, num_replicas=1, rank=0)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = list(DataLoader(train, batch_size=16, sampler=sampler))
        epochs.append([start for x, _ in batches for start in x[:, 0].tolist()])
        assert sorted(epochs[-1]) == list(range(0, 892, 8))
        assert max(int(y.max()) for _, y in batches) < 900
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])
