"""`TokenLoader`: epochs, loops over them, lengths, and saved states."""

import itertools
import json

import numpy as np
import pytest

from pagestream import Mixture, TokenLoader, open_tokens
from pagestream.errors import StateMismatchError

LENGTH = 16
WINDOWS = 39


@pytest.fixture
def path(tmp_path):
    """Returns a file of 39 windows. Each token equals its position."""
    np.arange(640, dtype="u2").tofile(tmp_path / "tokens.bin")
    return tmp_path / "tokens.bin"


def loader_of(tokens, **options):
    return TokenLoader(tokens, **{"sequence_length": LENGTH, "batch_size": 4, "seed": 3, **options})


def firsts(x):
    return [int(row[0]) for row in x]


def batches_of(loader):
    """Returns the first tokens of the windows, batch by batch."""
    return [firsts(x) for x, _ in loader]


def windows_of(loader):
    return [window for batch in batches_of(loader) for window in batch]


EVERY_WINDOW = list(range(0, WINDOWS * LENGTH, LENGTH))


# --- loops ----------------------------------------------------------------------------------------


def test_each_loop_is_one_epoch_in_an_order_of_its_own(path):
    with loader_of(path, drop_last=False) as loader:
        epochs = []
        for number in range(3):
            assert loader.current_epoch == loader.state_dict()["epoch"] == number
            epochs.append(windows_of(loader))
    assert [sorted(epoch) for epoch in epochs] == [EVERY_WINDOW] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_loop_of_several_epochs_has_batches_of_two(path):
    with loader_of(path, epochs=2, drop_last=False) as loader, loader_of(path, epochs=None) as endless:
        stream = [firsts(next(endless).x) for _ in range(40)]
        flat = list(itertools.chain(*stream))
        for number in range(2):
            batches = batches_of(loader)
            assert len(batches) == len(loader) == 20
            assert list(itertools.chain(*batches)) == flat[2 * number * WINDOWS : 2 * (number + 1) * WINDOWS]


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_the_length_is_the_number_of_batches_of_a_loop(path, epochs, drop_last):
    with loader_of(path, epochs=epochs, drop_last=drop_last) as loader:
        for _ in range(3):
            assert sum(1 for _ in loader) == len(loader)


def test_a_loop_that_was_left_continues_in_the_next(path):
    with loader_of(path, drop_last=False) as loader, loader_of(path, drop_last=False) as other:
        whole = [batches_of(other) for _ in range(2)]
        first = [firsts(x) for _, (x, _) in zip(range(3), loader, strict=False)]
        assert len(loader) == 10  # the length of a whole epoch, for schedules that depend on it
        assert first + batches_of(loader) == whole[0]
        assert batches_of(loader) == whole[1]


def test_a_loop_that_is_left_at_its_last_batch_is_over(path):
    with loader_of(path) as loader:
        taken = list(itertools.islice(loader, len(loader)))
        assert len(taken) == 9
        assert next(loader, "over") == next(loader, "over") == "over"
        assert loader.current_epoch == 1
        assert sum(1 for _ in loader) == 9
        assert loader.current_epoch == 2


def test_next_does_not_begin_another_epoch(path):
    with loader_of(path) as loader:
        for _ in loader:
            pass
        assert [next(loader, None) for _ in range(3)] == [None] * 3
        iter(loader)
        assert next(loader, None) is not None


def test_an_endless_loader_has_no_length_and_no_end(path):
    with loader_of(path, epochs=None) as loader:
        with pytest.raises(TypeError, match=r"endless and has no length.*no DataLoader and no workers"):
            len(loader)
        taken = [firsts(next(loader).x) for _ in range(39)]
    assert sorted(itertools.chain(*taken)) == sorted(EVERY_WINDOW * 4)


def test_a_trainer_that_counts_by_length_gets_whole_epochs(path):
    # Lightning does the same: it ends an epoch by the length, and never sees StopIteration.
    with loader_of(path) as loader:
        seen = []
        for _ in range(3):
            batches = iter(loader)
            seen.append([firsts(next(batches).x) for _ in range(len(loader))])
    with loader_of(path) as loader:
        assert seen == [batches_of(loader) for _ in range(3)]


# --- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_state_of_any_step_resumes_exactly(path, epochs, drop_last):
    options = {"epochs": epochs, "drop_last": drop_last}
    with loader_of(path, **options) as loader:
        states, seen = [], []
        for _ in range(2):
            for x, _ in loader:
                states.append(loader.state_dict())
                seen.append(firsts(x))
        third = batches_of(loader)
    steps = len(loader)
    with loader_of(path, **options) as loader:
        for step, state in enumerate(states, 1):
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert loader.current_epoch == step // steps * epochs + (
                0 if epochs == 1 else (step % steps * 4) // WINDOWS
            )
            assert len(loader) == steps
            rest = batches_of(loader)
            expected = [*seen, *third][step:]
            assert rest == expected[: steps - step % steps]
    for step in (3, steps - 1, steps, steps + 2):
        ranks = [loader_of(path, **options, batch_size=2, rank=rank, world_size=2) for rank in range(2)]
        parts = []
        for rank in ranks:
            rank.load_state_dict(states[step - 1])
            parts.append(batches_of(rank))
            rank.close()
        joined = [first + second for first, second in zip(*parts, strict=True)]
        assert joined == [*seen, *third][step:][: steps - step % steps]


def test_a_run_that_goes_on_from_a_state_has_the_epochs_that_are_left(path):
    with loader_of(path) as loader:
        whole = [batches_of(loader) for _ in range(3)]
    with loader_of(path) as loader:
        windows = itertools.islice(itertools.chain(loader, loader), 13)
        before = [firsts(x) for x, _ in windows]
        state = loader.state_dict()
    with loader_of(path) as loader:
        loader.load_state_dict(state)
        after = [batches_of(loader) for _ in range(loader.current_epoch, 3)]
    assert before + after[0] == whole[0] + whole[1]
    assert after[1:] == whole[2:]


def test_the_rest_that_is_dropped_is_not_left_for_another_batch_size(path):
    with loader_of(path) as loader:
        assert len(batches_of(loader)) == 9
        state = loader.state_dict()
    assert (state["samples_consumed"], state["epoch"]) == (WINDOWS, 1)
    with loader_of(path, batch_size=1, drop_last=False) as loader:
        loader.load_state_dict(state)
        assert sorted(windows_of(loader)) == EVERY_WINDOW


def test_samples_consumed_is_steps_times_rows_where_no_window_is_dropped(path):
    """Megatron's `consumed_samples` counts alike. The count at the end of an epoch includes dropped
    windows."""
    for epochs, at_the_end in ((None, 40), (1, WINDOWS + 4)):
        with loader_of(path, epochs=epochs) as loader:
            counts = []
            for _ in range(9):
                next(loader)
                counts.append(loader.state_dict()["samples_consumed"])
            assert counts[:8] == [*range(4, 36, 4)]
            next(iter(loader))
            assert loader.state_dict()["samples_consumed"] == at_the_end


# A state from a version without epochs in loops, and the batches that follow it.
OLD_STATE = {
    "version": 1,
    "fingerprint": "6e0e3447d5e4236d",
    "order": "shuffled",
    "order_version": 1,
    "mixing_radius": None,
    "seed": 0,
    "sequence_length": 16,
    "stride": 16,
    "target": "shift",
    "samples_consumed": 28,
    "epoch": 0,
}
OLD_BATCHES = [
    [576, 272, 512, 416],
    [112, 224, 608, 560],
    [400, 256, 544, 240],
    [160, 112, 16, 352],
    [368, 64, 576, 176],
    [544, 432, 128, 496],
]


@pytest.mark.parametrize("epochs", [None, 2])
def test_an_old_state_goes_on_with_the_same_batches(path, epochs):
    with loader_of(path, seed=0, epochs=epochs) as loader:
        loader.load_state_dict(OLD_STATE)
        assert [firsts(next(loader).x) for _ in OLD_BATCHES] == OLD_BATCHES


def test_an_old_state_ends_its_epoch_in_a_loader_of_one(path):
    with loader_of(path, seed=0, drop_last=False) as loader:
        loader.load_state_dict(OLD_STATE)
        stream = list(itertools.chain(*OLD_BATCHES))
        assert windows_of(loader) == stream[:11]
        assert windows_of(loader)[:13] == stream[11:]
        # A state saved at the end of an epoch, before its dropped rest, begins the next epoch.
    with loader_of(path, seed=0) as loader:
        loader.load_state_dict(OLD_STATE | {"samples_consumed": 36})
        assert loader.current_epoch == 1
        assert windows_of(loader)[:13] == stream[11:]


def test_a_state_behind_all_epochs_is_refused(path):
    with loader_of(path) as loader:
        state = loader.state_dict()
        with pytest.raises(StateMismatchError, match="below 2"):
            loader.load_state_dict(state | {"samples_consumed": 1 << 63})
        loader.load_state_dict(state | {"samples_consumed": (1 << 63) - 1})
        assert 1 <= len(batches_of(loader)) <= 9


# --- one epoch ------------------------------------------------------------------------------------


def test_an_epoch_is_the_same_each_time_and_has_a_length(path):
    with loader_of(path, order="sequential", drop_last=False) as loader:
        validation = loader.epoch(0)
        for _ in range(3):
            assert windows_of(validation) == EVERY_WINDOW
            assert len(batches_of(validation)) == len(validation) == 10
            # A loop that was left does not resume. Lightning's sanity check before the training leaves one.
            assert firsts(next(iter(validation)).x) == EVERY_WINDOW[:4]
    assert (validation.number, repr(validation)) == (0, "<Epoch 0, 10 batches>")


@pytest.mark.parametrize("epochs", [1, 2, None])
def test_an_epoch_of_any_loader_is_that_of_the_stream(path, epochs):
    with loader_of(path) as loader:
        expected = [batches_of(loader) for _ in range(4)]
    with loader_of(path, epochs=epochs) as loader:
        for number in (2, 0, 3, 0):
            assert batches_of(loader.epoch(number)) == expected[number]
            assert loader.current_epoch == number + 1
        # The loader continues from there.
        assert [firsts(next(iter(loader)).x)] == expected[1][:1]


def test_an_endless_loader_goes_on_after_an_epoch(path):
    with loader_of(path, epochs=None) as loader:
        assert sum(1 for _ in loader.epoch(5)) == len(loader.epoch(5)) == 9
        assert loader.current_epoch == 6
        assert len([next(loader) for _ in range(30)]) == 30


def move_by_epoch(loader):
    assert sum(1 for _ in loader.epoch(0)) == 9


def move_by_first_batch(loader):
    next(iter(loader.epoch(0)))


def move_by_state(loader):
    loader.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("move", [move_by_epoch, move_by_first_batch, move_by_state])
@pytest.mark.parametrize("loop", [iter, lambda loader: iter(loader.epoch(0))], ids=["loader", "epoch"])
@pytest.mark.parametrize("steps", [0, 1, 3, 9])
def test_a_loop_whose_loader_was_moved_ends_with_an_error(path, move, loop, steps):
    """It would repeat batches or skip some."""
    with loader_of(path) as loader:
        batches = loop(loader)
        for _ in range(steps):
            next(batches)
        move(loader)
        with pytest.raises(RuntimeError, match=r"epoch\(\) or load_state_dict\(\) has moved its loader"):
            next(batches)
        assert len(batches_of(loader.epoch(0))) == 9


def test_loops_that_share_a_loader_share_its_batches(path):
    """For example, a loop that takes further batches to accumulate gradients."""
    with loader_of(path) as loader:
        expected = batches_of(loader.epoch(0))
    with loader_of(path) as loader:
        groups = [[first, *itertools.islice(loader, 2)] for first in loader]
        assert [firsts(batch.x) for group in groups for batch in group] == expected


def test_epochs_that_do_not_exist_are_refused(path):
    with loader_of(path) as loader:
        with pytest.raises(ValueError, match="number must be at least 0"):
            loader.epoch(-1)
        with pytest.raises(ValueError, match="ends after 2"):
            loader.epoch((1 << 63) - 1)
    with pytest.raises(ValueError, match="are more than 2"):
        loader_of(path, epochs=1 << 60)


def test_a_new_epoch_reads_what_a_new_loader_reads_already(path):
    with loader_of(path) as loader:
        list(loader.epoch(0))
        # The epoch's first batches came from the threads that the loader had started.
        assert loader._batches.pipelines_started == 1
        list(loader.epoch(0))
        assert loader._batches.pipelines_started == 2


# --- loaders without a batch ----------------------------------------------------------------------


def test_a_loader_without_a_batch_is_refused(path):
    for options in ({"batch_size": 40}, {"batch_size": 20, "rank": 0, "world_size": 2}):
        with pytest.raises(ValueError, match="has 39 windows, but a global batch needs 40"):
            loader_of(path, **options)
    with loader_of(path, batch_size=40, drop_last=False) as loader:
        assert [len(batch) for batch in batches_of(loader)] == [39]
    for epochs in (2, None):
        with loader_of(path, batch_size=40, epochs=epochs) as loader:
            assert len(next(loader).x) == 40
            with pytest.raises(ValueError, match="but a global batch needs"):
                loader.epoch(0)


# --- mixtures -------------------------------------------------------------------------------------


@pytest.fixture
def corpora(tmp_path):
    """Makes corpora of 60 and 40 windows of one token. The second corpus begins with token 1000."""
    np.arange(60, dtype="u2").tofile(tmp_path / "a.bin")
    np.arange(1000, 1040, dtype="u2").tofile(tmp_path / "b.bin")
    return open_tokens(tmp_path / "a.bin"), open_tokens(tmp_path / "b.bin")


def mixed(corpora, weights, exhausted, **options):
    mixture = Mixture([*zip(corpora, weights, strict=True)], exhausted=exhausted)
    return TokenLoader(mixture, **{"sequence_length": 1, "target": "none", "batch_size": 8, **options})


def tokens_of(loader):
    return [int(token) for x in loader for token in x[:, 0]]


def test_a_mixture_that_repeats_has_no_epochs(corpora):
    for epochs in ({}, {"epochs": 3}):
        with pytest.raises(ValueError, match="has no epochs; pass epochs=None"):
            mixed(corpora, (1, 1), "repeat", **epochs)
    with mixed(corpora, (1, 1), "repeat", epochs=None) as loader:
        assert loader.current_epoch is None
        with pytest.raises(TypeError, match="no length"):
            len(loader)
        with pytest.raises(ValueError, match="has no epochs"):
            loader.epoch(0)


@pytest.mark.parametrize(("exhausted", "length"), [("drop", 100), ("stop", 80)])
def test_an_epoch_of_a_mixture_is_a_pass(corpora, exhausted, length):
    with mixed(corpora, (1, 1), exhausted, drop_last=False) as loader:
        for number in range(3):
            assert loader.current_epoch == number
            found = tokens_of(loader)
            assert len(found) == len(set(found)) == length
            assert -(-length // 8) == len(loader) == len(loader.epoch(number))
        assert len(set(tokens_of(loader.epoch(0)))) == length


def test_a_mixture_that_takes_over_ends_its_epoch_first(corpora):
    with mixed(corpora, (1, 1), "drop") as loader:
        seen = [token for _ in range(6) for token in next(loader)[:, 0].tolist()]
        state = loader.state_dict()
    with mixed(corpora, (1, 3), "drop", drop_last=False) as loader:
        loader.load_state_dict(state, new_mixture=True)
        assert len(set(seen + tokens_of(loader))) == 100
        assert loader.current_epoch == 1
        assert len(set(tokens_of(loader))) == 100
        with pytest.raises(
            ValueError, match="epoch 0 began under other weights; the first in full is epoch 1"
        ):
            loader.epoch(0)
        assert len(set(tokens_of(loader.epoch(1)))) == len(set(tokens_of(loader.epoch(2)))) == 100
