"""Checkpoints in threads and other processes, pickled, with thousands of files, opened very often."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pagestream import open_checkpoint
from pagestream.errors import SafetensorError

from support.checkpoints import INDEX, shard_name, sharded, write_index, write_shards
from support.process import PROGRAMS, output_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of 12 shards with 4 tensors each, and an index. Tests must not change it."""
    return sharded(tmp_path_factory.mktemp("checkpoint") / "model")


def right(weights, shard=5):
    return bool((weights[f"layer.{shard}.1"] == shard * 1000 + 1).all())


@pytest.mark.parametrize("source", ["folder", "index", "list"])
def test_a_pickle_ships_paths_alone_and_opens_from_anywhere(folder, source, monkeypatch):
    monkeypatch.chdir(os.path.dirname(folder))
    name = os.path.basename(folder)
    given = {"folder": name, "index": f"{name}/{INDEX}"}.get(
        source, [f"{name}/{shard_name(number, 12)}" for number in (2, 1)]
    )
    weights = open_checkpoint(given, mmap_mode="read", strict=False, cache_root=name)
    monkeypatch.chdir("/")
    shipped = pickle.dumps(weights)
    assert len(shipped) < 600
    again = pickle.loads(shipped)
    assert (list(again), again.mode) == (list(weights), "read")
    assert right(again, 1)
    assert pickle.dumps(again) == shipped
    assert again.files[0] == os.path.join(folder, shard_name(2 if source == "list" else 1, 12))


def test_a_pickle_opens_as_the_original_was_opened(tmp_path):
    """Without the original's options, this checkpoint would not open or would have other arrays."""
    write_shards(tmp_path / "root", {"data": {"t": np.arange(3, dtype="f4")}})
    folder = tmp_path / "model"
    folder.mkdir()
    os.symlink("../root/data", folder / "a.safetensors")
    write_index(folder, {"t": "a.safetensors", "missing": "a.safetensors"})
    weights = open_checkpoint(folder, strict=False, cache_root=tmp_path / "root", raw=True)
    again = pickle.loads(pickle.dumps(weights))
    assert list(again) == ["t"]
    assert (again["t"].dtype, again["t"].shape) == ("u1", (12,))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_other_processes_read_it(folder, method):
    weights = open_checkpoint(folder)
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.starmap(right, [(weights, shard) for shard in range(12)]) == [True] * 12


def in_child(work):
    """Forks and runs `work`, which returns whether all was well. A child that hangs prints its stacks."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(120)
        try:
            os._exit(0 if work() else 1)
        except BaseException:  # noqa: BLE001 - no exception may return to pytest
            os._exit(2)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_keeps_working_while_other_threads_open_and_read(folder):
    weights = open_checkpoint(folder)
    array = weights["layer.3.0"]
    stop = threading.Event()

    def open_and_read():
        while not stop.is_set():
            with open_checkpoint(folder) as own:
                assert right(own)
            weights.read("layer.7.2")
            weights.check()

    def work():
        good = (
            right(weights) and bool((weights.read("layer.8.1") == 8001).all()) and bool((array == 3000).all())
        )
        weights.check()
        weights.close()
        with open_checkpoint(folder) as again:
            return good and right(again, 11)

    threads = [threading.Thread(target=open_and_read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert [in_child(work) for _ in range(60)] == [0] * 60
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert right(weights)


def test_eight_threads_share_one_checkpoint(folder):
    weights = open_checkpoint(folder)

    def look(number):
        for turn in range(100):
            shard = (number + turn) % 12
            assert right(weights, shard)
            assert (weights.read(f"layer.{shard}.3") == shard * 1000 + 3).all()
        return number

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(look, range(8))) == list(range(8))


def test_closing_under_eight_threads_raises_exceptions_only(folder):
    weights = open_checkpoint(folder)

    def look(number):
        kept, turn = [], 0
        try:
            while True:
                turn += 1
                kept.append(weights[f"layer.{turn % 12}.0"])
                if (number, turn) == (0, 50):
                    weights.close()
        except ValueError as error:
            assert all((array == array[0, 0]).all() for array in kept)
            return str(error)[-18:]

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(look, range(8))) == {"the file is closed"}


LEAKS = PROGRAMS / "checkpoint_processes/leaks.py"


def test_ten_thousand_openings_leak_nothing(tmp_path):
    folder = sharded(tmp_path / "model", shards=2, tensors=2)
    os.mkdir(tmp_path / "bad")
    os.symlink("/etc/passwd", tmp_path / "bad" / "model.safetensors")
    assert output_of(LEAKS, folder, tmp_path / "bad") == "good"


def test_refusals_of_many_files_leak_nothing(tmp_path):
    folder = sharded(tmp_path / "model", shards=40)
    for number in range(1, 41, 2):
        os.unlink(os.path.join(folder, shard_name(number, 40)))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with pytest.raises(SafetensorError, match="20 files are missing"):
            open_checkpoint(folder)
    gc.collect()
    # There may be fewer if objects of an earlier test were freed meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before


THOUSANDS = PROGRAMS / "checkpoint_processes/thousands.py"


@pytest.mark.parametrize(("mode", "limit"), [("auto", 256), ("read", 256), ("auto", 64)])
def test_thousands_of_files_need_few_descriptors(tmp_path, mode, limit):
    shards = {f"m-{n}.safetensors": {f"t{n}": np.full(4, n, "f4")} for n in range(3000)}
    folder = write_shards(tmp_path / "model", shards)
    printed = output_of(THOUSANDS, folder, mode, limit)
    assert printed == os.path.join(folder, "m-0.safetensors")


def test_checkpoints_share_the_descriptors_and_give_them_back(tmp_path):
    code = PROGRAMS / "checkpoint_processes/checkpoints_share_the_descriptors_and_give_them.py"
    folder = sharded(tmp_path / "model", shards=100, tensors=1)
    assert output_of(code, folder).splitlines() == [str([64] * 2 + [16] * 6)] * 3


def test_opening_does_not_make_a_string_of_each_name(tmp_path):
    """30,000 strings of 60 bytes would take about 3 MiB of Python's memory."""
    code = PROGRAMS / "checkpoint_processes/opening_does_not_make_a_string_of.py"
    folder = sharded(tmp_path / "model", shards=30, tensors=1000)
    assert int(output_of(code, folder)) < 100_000


def test_closing_the_interpreter_with_checkpoints_open_is_quiet(folder):
    code = PROGRAMS / "checkpoint_processes/closing_the_interpreter_with_checkpoints_open_is.py"
    assert output_of(code, folder) == "48"
