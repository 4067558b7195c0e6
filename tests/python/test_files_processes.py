"""Pickling, fork, spawn, threads and leaks."""

import multiprocessing
import os
import pickle
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from pagestream import MappedFile, StagingBuffer

from support import real
from support.mappings import mappings_of
from support.process import PROGRAMS, output_of, until


def first_tokens(f):
    return np.frombuffer(f.read(0, 8), "u2").tolist(), f.mode, os.getpid()


def test_a_pickle_ships_no_bytes_and_opens_the_file_again(big_file):
    f = MappedFile(big_file, mode="private")
    shipped = pickle.dumps(f)
    assert len(shipped) < 500
    again = pickle.loads(shipped)
    assert again.read(80, 8) == f.read(80, 8)
    assert (again.path, again.requested_mode, type(again)) == (f.path, "private", MappedFile)


def test_a_pickle_survives_a_change_of_directory(token_file, monkeypatch):
    monkeypatch.chdir(token_file.parent)
    shipped = pickle.dumps(MappedFile("tokens.bin"))
    monkeypatch.chdir("/")
    assert pickle.loads(shipped).size == 8192


class Subclass(MappedFile):
    """A subclass as a user might define it."""


def test_a_subclass_and_its_attributes_survive_pickling(token_file):
    f = Subclass(token_file)
    f.note = "mine"
    again = pickle.loads(pickle.dumps(f))
    assert (type(again), again.note) == (Subclass, "mine")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_another_process_reads_it(token_file, method):
    f = MappedFile(token_file)
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, context) as pool:
        tokens, mode, process = pool.submit(first_tokens, f).result()
    assert (tokens, mode) == ([0, 1, 2, 3], "shared")
    assert process != os.getpid()


def test_a_fork_keeps_using_open_files(token_file):
    """The child does not reopen the file: on FUSE, that would drop its page cache."""
    f = MappedFile(token_file)
    array = np.frombuffer(f, "u2")
    os.unlink(token_file)
    child = os.fork()
    if child == 0:
        good = f.read(0, 4) == bytes([0, 0, 1, 0]) and array[7] == 7
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.stress
def test_many_threads_read_refresh_and_close(token_file):
    f = MappedFile(token_file)
    errors = []

    def work(number):
        try:
            for turn in range(200):
                start = (number * 37 + turn) % 4000
                assert f.read(2 * start, 2) == np.uint16(start).tobytes()
                assert f.view(2 * start, 2).tobytes() == np.uint16(start).tobytes()
                f.refresh()
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert not errors
    closer = threading.Thread(target=f.close)
    closer.start()
    for _ in range(1000):
        try:
            assert len(f.read()) == 8192
        except ValueError as error:
            assert "closed" in str(error)  # noqa: PT017
    closer.join()
    assert f.closed


def test_reading_lets_other_threads_run(tmp_path):
    """While one thread waits in the kernel for a stopped FUSE daemon, another one continues."""
    with real.stoppable_bindfs(tmp_path) as (mount, daemon):
        f = MappedFile(mount / "f")
        f.evict()
        daemon.send_signal(signal.SIGSTOP)
        reader = threading.Thread(target=f.read)
        reader.start()
        turns = sum(1 for _ in range(100_000))
        assert reader.is_alive()
        assert turns == 100_000
        daemon.send_signal(signal.SIGCONT)
        reader.join()
        f.close()


def test_dropping_the_last_reference_lets_other_threads_run(tmp_path):
    """Closing a file on a stopped FUSE daemon waits for the daemon. Python must not wait."""
    with real.stoppable_bindfs(tmp_path) as (mount, daemon):
        held = [MappedFile(mount / "f")]
        daemon.send_signal(signal.SIGSTOP)
        dropper = threading.Thread(target=held.clear)
        dropper.start()
        # The list is empty before its file is closed. If the closing thread held the GIL, this thread would
        # never see the empty list and could not resume the daemon.
        assert until(lambda: not held)
        daemon.send_signal(signal.SIGCONT)
        dropper.join()


def test_ten_thousand_opens_leak_neither_descriptors_nor_mappings(token_file):
    code = PROGRAMS / "files_processes/ten_thousand_opens_leak_neither_descriptors_nor.py"
    assert output_of(code, token_file) == "clean"


def test_refusals_leak_no_descriptors(tmp_path):
    code = PROGRAMS / "files_processes/refusals_leak_no_descriptors.py"
    assert output_of(code, tmp_path) == "0"


def fill(buffer):
    np.frombuffer(buffer, "u1")[:] = 9


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_shared_buffer_reaches_another_process_by_descriptor(method):
    buffer = StagingBuffer(1 << 20, shared=True)
    process = multiprocessing.get_context(method).Process(target=fill, args=(buffer,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert (np.frombuffer(buffer, "u1") == 9).all()


def add_one(buffer):
    np.frombuffer(buffer, "u1")[:] += 1
    return buffer


def test_a_shared_buffer_goes_through_a_pool_and_back():
    buffer = StagingBuffer(4096, shared=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        again = pool.apply(add_one, (buffer,))
    assert (np.frombuffer(again, "u1") == 1).all()
    np.frombuffer(again, "u1")[:] = 5
    assert (np.frombuffer(buffer, "u1") == 5).all()


def test_mappings_are_seen_by_these_tests(token_file):
    f = MappedFile(token_file)
    assert len(mappings_of(token_file)) == 1
    assert f.size == 8192
