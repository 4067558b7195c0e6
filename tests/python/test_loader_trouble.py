"""`TokenLoader` in trouble: interrupts, errors among threads, forks, replaced files, useless arguments."""

import itertools
import os
import pickle
import threading

import numpy as np
import pytest

from pagestream import Mixture, TokenLoader, open_tokens
from pagestream.errors import FileChangedError, StateMismatchError

from support.process import output_of

LENGTH = 16


def write(path, windows):
    """Tokens that are their own positions."""
    np.arange(windows * LENGTH + 1, dtype="u4").tofile(path)
    return open_tokens(path, dtype="uint32")


def test_threads_that_share_a_loader_over_errors_get_each_batch_once(tmp_path):
    path = tmp_path / "tokens.bin"
    corpus = write(path, 8000)
    times = os.stat(path).st_mtime_ns
    found, errors, stop = [], [], threading.Event()

    def consume(loader):
        while True:
            try:
                x, _ = next(loader)
            except FileChangedError as error:
                errors.append(error)
            except StopIteration:
                return
            else:
                found.extend(x[:, 0].tolist())

    def touch():
        while not stop.wait(0.002):
            os.utime(path, ns=(times, times + 1000))
            stop.wait(0.002)
            os.utime(path, ns=(times, times))

    with TokenLoader(corpus, sequence_length=LENGTH, batch_size=2, epochs=2, seed=4) as loader:
        troublemaker = threading.Thread(target=touch)
        threads = [threading.Thread(target=consume, args=(loader,)) for _ in range(4)]
        troublemaker.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        troublemaker.join()
    assert sorted(found) == sorted(2 * [window * LENGTH for window in range(8000)])
    assert errors


def test_a_state_is_loaded_while_another_thread_waits(tmp_path):
    corpus = write(tmp_path / "tokens.bin", 1000)
    with TokenLoader(corpus, sequence_length=LENGTH, batch_size=1, order="sequential") as loader:
        state = loader.state_dict()
        seen, stop = [], threading.Event()

        def consume():
            while not stop.is_set():
                seen.append(int(next(loader).x[0, 0]) // LENGTH)

        thread = threading.Thread(target=consume)
        thread.start()
        for _ in range(20):
            loader.load_state_dict(state)
        stop.set()
        thread.join()
    # It begins again, at the beginning, and leaves none out.
    assert all(after in {before + 1, 0} for before, after in itertools.pairwise(seen))


@pytest.mark.parametrize("mode", ["shared", "read"])
@pytest.mark.parametrize("trouble", ["unlink", "replace"])
def test_a_file_that_is_not_there_for_the_next_epoch_is_an_error(tmp_path, mode, trouble):
    path = tmp_path / "tokens.bin"
    write(path, 2000).close()
    corpus = open_tokens(path, dtype="uint32", mmap_mode=mode)
    with TokenLoader(
        corpus, sequence_length=LENGTH, batch_size=7, order="sequential", epochs=3, lookahead=1
    ) as loader:
        next(loader)
        if trouble == "unlink":
            path.unlink()
        else:
            other = tmp_path / "other"
            np.zeros(2000 * LENGTH + 1, "u4").tofile(other)
            other.rename(path)
        with pytest.raises(FileChangedError, match=r"tokens\.bin"):  # noqa: PT012 - at the epoch's end
            for x, _ in loader:
                # This epoch is read to its end, from the file that was opened.
                assert x[0, 0] == (loader.state_dict()["samples_consumed"] - 7) * LENGTH
        consumed = loader.state_dict()["samples_consumed"]
        assert 2000 - 7 < consumed < 2000 + 7
        with pytest.raises(FileChangedError):
            next(loader)


FORKS = """
import os, resource, sys, threading, signal
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import numpy as np
from pagestream import TokenLoader, open_tokens
folder = sys.argv[1]
tokens = open_tokens(folder)
loader = TokenLoader(tokens, sequence_length=50, batch_size=8, threads=4)
stop = threading.Event()
def consume():
    while not stop.is_set():
        next(loader)
thread = threading.Thread(target=consume)
thread.start()
for turn in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs is killed, and seen
        for shard in range(200):
            assert tokens[shard * 100] == shard
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, turn
stop.set()
thread.join()
loader.close()
print("all came back")
"""


def test_forks_of_a_process_that_opens_and_closes_files(tmp_path):
    for shard in range(200):
        np.full(100, shard, "u2").tofile(tmp_path / f"{shard:03}.bin")

    assert output_of(FORKS, tmp_path) == "all came back"


def test_what_is_asked_for_ahead_has_a_limit(tmp_path):
    corpus = write(tmp_path / "tokens.bin", 100)
    with TokenLoader(corpus, sequence_length=LENGTH, batch_size=4, lookahead=10**9) as loader:
        for _ in range(200):
            next(loader)
        assert loader.metrics()["depth_batches"] <= 4096
    small = 1 << 20
    with TokenLoader(
        corpus, sequence_length=LENGTH, batch_size=64, lookahead=10**9, memory_bytes=small
    ) as loader:
        next(loader)
        assert loader.metrics()["depth_batches"] * 64 * LENGTH * 4 <= small


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mmap_mode": "read"}, ValueError, "mmap_mode='read' has no effect without a path"),
        ({"max_documents": 3}, ValueError, "max_documents=3 has no effect without documents="),
        ({"mixing_radius": 99}, ValueError, "mixing_radius=99 has no effect without order="),
        ({"drop_last": "no"}, TypeError, "drop_last must be True or False, not 'no'"),
        ({"sequence_length": True}, TypeError, "sequence_length must be an integer, not True"),
        ({"batch_size": "8"}, TypeError, "batch_size must be an integer, not '8'"),
        ({"lookahead": "all"}, TypeError, "lookahead must be an integer, not 'all'"),
        ({"threads": "2"}, TypeError, "threads must be an integer, not '2'"),
        ({"threads": 1 << 70}, ValueError, "threads must be below 2"),
        ({"batch_size": 1 << 31}, ValueError, "batch_size is 2147483648; it must be at most 16777216"),
    ],
)
def test_arguments_without_effect_or_sense_are_refused(tmp_path, options, error, message):
    corpus = write(tmp_path / "tokens.bin", 100)
    with pytest.raises(error, match=message):
        TokenLoader(corpus, **{"sequence_length": LENGTH, "batch_size": 1, **options})


def test_half_of_a_place_among_ranks_is_refused(tmp_path, monkeypatch):
    corpus = write(tmp_path / "tokens.bin", 100)
    for set_to, message in (
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is not set"),
        ({"RANK": "1"}, "WORLD_SIZE is not set, but RANK is 1"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is 2"),
    ):
        with monkeypatch.context() as patch:
            for name, value in set_to.items():
                patch.setenv(name, value)
            with pytest.raises(ValueError, match=message):
                TokenLoader(corpus, sequence_length=LENGTH, batch_size=1)


@pytest.mark.parametrize("state", [None, [1], {"version": 1}])
def test_what_is_no_state_is_refused_and_changes_nothing(tmp_path, state):
    corpus = write(tmp_path / "tokens.bin", 100)
    with TokenLoader(corpus, sequence_length=LENGTH, batch_size=1, order="sequential") as loader:
        next(loader)
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(state)
        with pytest.raises(StateMismatchError, match="below 2"):
            loader.load_state_dict(loader.state_dict() | {"samples_consumed": 1 << 64})
        assert next(loader).x[0, 0] == LENGTH


def test_a_loader_is_neither_copied_nor_pickled(tmp_path):
    corpus = write(tmp_path / "tokens.bin", 100)
    with TokenLoader(corpus, sequence_length=LENGTH, batch_size=1) as loader:
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            pickle.dumps(loader)
        assert loader.metrics()["threads"] > 0
    assert loader.metrics()["threads"] == 0


def test_a_mixture_of_paths_is_refused():
    with pytest.raises(TypeError, match="source 0 of a mixture must be a corpus, as from open_tokens"):
        Mixture([("tokens.bin", 1.0)])
