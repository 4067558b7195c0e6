"""`TokenLoader` under interrupts, signal handlers and forks."""

import contextlib
import random
import signal
import sys
import threading

import numpy as np
import pytest

import pagestream.torch
from pagestream import TokenLoader
from pagestream.devices.copy_device import CopyDevice
from pagestream.torch import loader as torch_loader

from support.late_device import StagedOnCpu
from support.process import PROGRAMS, output_of

LENGTH = 16
WINDOWS = 1 << 14


KINDS = [TokenLoader, pagestream.torch.TokenLoader, StagedOnCpu]


def sequential(kind, path, **options):
    given = {"sequence_length": LENGTH, "batch_size": 4, "order": "sequential", "epochs": None}
    return kind(path, **given, **options)


def first_of(batch):
    return int(batch[0][0, 0])


@pytest.fixture
def path(tmp_path):
    """Returns a file in which each token is its own position."""
    np.save(tmp_path / "tokens.npy", np.arange(WINDOWS * LENGTH + 1, dtype="u4"))
    return tmp_path / "tokens.npy"


@contextlib.contextmanager
def handler_of(number, handler):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


# --- no batch is lost -----------------------------------------------------------------------------


@pytest.mark.stress
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_loses_no_batch(path, kind):
    def interrupt(*_):
        raise KeyboardInterrupt

    chance, main = random.Random(0), threading.get_ident()
    received = []
    with handler_of(signal.SIGUSR1, interrupt), sequential(kind, path) as loader:
        for _ in range(40):
            timer = threading.Timer(chance.random() / 100, signal.pthread_kill, (main, signal.SIGUSR1))
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come anywhere
                timer.start()
                # The `for` statement hands out each batch at once, and `append` stores it.
                for batch in loader:
                    received.append(batch)  # noqa: PERF402 - one by one, until it is interrupted
            timer.join()
            received[:] = [first_of(batch) if isinstance(batch, tuple) else batch for batch in received]
            assert loader.state_dict()["samples_consumed"] == 4 * len(received)
    expected = [4 * number % WINDOWS * LENGTH for number in range(len(received))]
    assert received == expected


@contextlib.contextmanager
def interrupt_after(function_name, owner):
    """Raises KeyboardInterrupt once, when this C method returns: there Python handles signals."""
    raised = []

    def profile(_frame, event, function):
        if (
            event == "c_return"
            and not raised
            and function.__name__ == function_name
            and isinstance(getattr(function, "__self__", None), owner)
        ):
            raised.append(function)
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        yield raised
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_while_the_lock_is_released_loses_no_batch(path, kind):
    with sequential(kind, path) as loader:
        next(loader)
        with (
            interrupt_after("__exit__", type(loader._handout._lock.lock)) as raised,
            pytest.raises(KeyboardInterrupt),
        ):
            next(loader)
        assert raised
        assert loader.state_dict()["samples_consumed"] == 4
        assert first_of(next(loader)) == 4 * LENGTH
        assert first_of(next(loader)) == 8 * LENGTH


@pytest.mark.parametrize("kind", KINDS[1:])
def test_an_interrupt_while_a_batch_becomes_tensors_loses_none(path, kind, monkeypatch):
    # The loader, or its staging, looks the function up in this module.
    module = torch_loader if kind is not StagedOnCpu else sys.modules["pagestream.torch._staging"]
    convert, calls = module.converted, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return convert(*arguments)

    monkeypatch.setattr(module, "converted", interrupted)
    found = []
    with sequential(kind, path) as loader:
        while len(found) < 6:
            with contextlib.suppress(KeyboardInterrupt):
                found.append(first_of(next(loader)))
            assert loader.state_dict()["samples_consumed"] == 4 * len(found)
    assert found == [4 * LENGTH * number for number in range(6)]


def test_an_interrupt_after_a_batch_was_staged_loses_none(path, monkeypatch):
    hand_over, calls = CopyDevice.hand_over, []

    def interrupted(self, tensors, done):
        calls.append(self)
        hand_over(self, tensors, done)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(CopyDevice, "hand_over", interrupted)
    with sequential(StagedOnCpu, path) as loader:
        assert first_of(next(loader)) == 0
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        assert [first_of(next(loader)) for _ in range(3)] == [64, 128, 192]


# --- signal handlers ------------------------------------------------------------------------------


class InTheMiddle:
    """A pipeline whose `next` first calls a function in this thread, as a signal handler would."""

    def __init__(self, pipeline, happens):
        self._pipeline = pipeline
        self._happens = happens

    def __getattr__(self, name):
        return getattr(self._pipeline, name)

    def next(self):
        self._happens()
        return self._pipeline.next()


def host_batches(loader):
    """Returns the part of a loader that owns the pipeline."""
    return getattr(loader._batches, "_host", loader._batches)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_is_closed_by_a_handler_that_interrupts_next(path, kind):
    loader = sequential(kind, path)
    next(loader)
    host_batches(loader)._pipeline = InTheMiddle(host_batches(loader)._pipeline, loader.close)
    with pytest.raises(ValueError, match="closed"):  # noqa: PT012 - a staged one has a batch at hand
        for _ in range(3):
            next(loader)
    assert host_batches(loader)._pipeline is None
    assert loader.metrics().threads == 0
    with pytest.raises(ValueError, match="closed"):
        next(loader)
    loader.close()


@pytest.mark.stress
def test_a_loader_is_closed_by_a_real_signal_in_its_loop(path):
    with handler_of(signal.SIGUSR1, lambda *_: loader.close()):
        for _ in range(20):
            loader = sequential(TokenLoader, path)
            main = threading.get_ident()
            timer = threading.Timer(0.005, signal.pthread_kill, (main, signal.SIGUSR1))
            timer.start()
            with pytest.raises(ValueError, match="closed"):  # noqa: PT012 - the signal may come anywhere
                while True:
                    next(loader)
            timer.join()
            assert host_batches(loader)._pipeline is None


def test_a_handler_cannot_use_the_loader_it_interrupts(path):
    with sequential(TokenLoader, path) as loader:
        next(loader)
        state = loader.state_dict()
        errors = []

        def happens():
            for call in (lambda: loader.load_state_dict(state), lambda: next(loader)):
                with pytest.raises(RuntimeError, match="in the middle of next") as caught:
                    call()
                errors.append(caught)

        host_batches(loader)._pipeline = InTheMiddle(host_batches(loader)._pipeline, happens)
        assert first_of(next(loader)) == 4 * LENGTH
        assert len(errors) == 2
        # Afterwards the loader works as usual.
        loader.load_state_dict(state)
        assert first_of(next(loader)) == 4 * LENGTH


def test_a_loader_is_true_also_without_a_length(path):
    with sequential(TokenLoader, path) as loader:
        with pytest.raises(TypeError, match="no length"):
            len(loader)
        assert loader


# --- forks ----------------------------------------------------------------------------------------

METRICS_IN_FORKS = PROGRAMS / "loader_interrupts/metrics_in_forks.py"


@pytest.mark.stress
def test_metrics_in_a_fork_are_what_the_parent_had_counted(path):
    assert output_of(METRICS_IN_FORKS, path) == "all came back"


BATCHES_IN_FORKS = PROGRAMS / "loader_interrupts/batches_in_forks.py"


def test_batches_of_the_parent_die_in_a_fork(path):
    assert output_of(BATCHES_IN_FORKS, path) == "all came back"
