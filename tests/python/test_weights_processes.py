"""Plain processes of one node that load a checkpoint from a slow mount at the same time.

On a mount with a page cache, the processes share the cache: a page that one process is reading is locked, the
other processes wait for it, and the kernel completes the read even if the reader dies. With
PAGESTREAM_SHARE=on, only one process opens a file whose pages an open would drop. It passes the open file to
the other processes.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from pagestream import MappedFile, _native, open_checkpoint

from support import real
from support.offers import name_of, names_in_use, offers, stamp_of
from support.process import PROGRAMS, output_of, start_python, until
from support.together import begin, last_lines, processes

pytestmark = pytest.mark.slow

MIB = 1 << 20
SHARDS, TENSORS, TENSOR_BYTES = 2, 12, 2 * MIB
WHOLE = SHARDS * TENSORS * TENSOR_BYTES
# Covers headers and the kernel's read-ahead of them.
LITTLE = MIB


@pytest.fixture(autouse=True)
def shares(monkeypatch):
    """Turns sharing on in the programs of the tests."""
    monkeypatch.setenv("PAGESTREAM_SHARE", "on")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    for shard in range(SHARDS):
        tensors = {
            f"t{number:02}": np.random.default_rng(number).integers(0, 256, TENSOR_BYTES, dtype=np.uint8)
            for number in range(shard * TENSORS, (shard + 1) * TENSORS)
        }
        safetensors.numpy.save_file(tensors, folder / f"model-{shard}.safetensors")
    return folder


@pytest.fixture(scope="module")
def digest(source):
    with open_checkpoint(source) as weights:
        found = hashlib.sha256()
        for name in sorted(weights):
            found.update(name.encode() + weights[name].tobytes())
    return found.hexdigest()


@contextlib.contextmanager
def mounted(source, tmp_path, **options):
    for path in source.iterdir():
        with MappedFile(path) as file:
            file.evict()
    with real.slow_fuse(source, tmp_path / "slow", delay_ms=10, **options) as slow:
        yield slow


def loading(way, folder, count):
    """Starts programs that have opened the files or are about to open them."""
    return processes(PROGRAMS / "weights_processes/load.py", [(way, folder)] * count)


# Each open of a file drops its pages, unless the daemon keeps them.
WAYS = {
    "stream": ("stream", False),
    "stream, kept": ("stream", True),
    "safe_open": ("safe_open", False),
    "safe_open, kept": ("safe_open", True),
}
every_way = pytest.mark.parametrize(("way", "keeps"), WAYS.values(), ids=WAYS)


def late_bytes(way, keeps):
    """Returns the bytes that are read again if one process opens the first file while another reads it."""
    return WHOLE // SHARDS if (way, keeps) == ("safe_open", False) else 0


@every_way
@pytest.mark.parametrize("count", [2, 6])
def test_processes_that_load_together_read_each_byte_once(source, digest, tmp_path, way, keeps, count):
    with (
        mounted(source, tmp_path, keep_cache=keeps) as slow,
        loading(way, slow.path, count) as found,
    ):
        begin(found)
        assert [process.stdout.readline() for process in found] == ["begun\n"] * count
        assert last_lines(found) == [digest] * count
    assert WHOLE <= slow.counts["read_bytes"] <= WHOLE + LITTLE + late_bytes(way, keeps)


@every_way
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stalled_process_does_not_stop_the_others(source, digest, tmp_path, way, keeps, stop):
    with (
        mounted(source, tmp_path, keep_cache=keeps) as slow,
        loading(way, slow.path, 3) as found,
    ):
        begin(found)
        assert found[0].stdout.readline() == "begun\n"
        found[0].send_signal(stop)
        assert [process.stdout.readline() for process in found[1:]] == ["begun\n"] * 2
        assert last_lines(found[1:]) == [digest] * 2
        if stop == signal.SIGSTOP:
            assert found[0].poll() is None
            found[0].send_signal(signal.SIGCONT)
            assert last_lines(found[:1]) == [digest]
    most_bytes = WHOLE + LITTLE
    if not keeps:
        # A killed process loses its part of a shard. While one process is stopped, the other processes open
        # the files that it offers, and may drop each other's pages. When it resumes, it opens their files.
        for_themselves = 2 if way == "safe_open" else 1
        most_bytes += for_themselves * WHOLE if stop == signal.SIGSTOP else WHOLE // SHARDS
    assert WHOLE <= slow.counts["read_bytes"] <= most_bytes


@contextlib.contextmanager
def held(way, folder):
    """Yields a process that has used all tensors of the checkpoint and keeps its files open."""
    with processes(PROGRAMS / "weights_processes/hold.py", [(way, folder)]) as [holder]:
        begin([holder])
        assert holder.stdout.readline() == "held\n"
        yield holder


@pytest.mark.parametrize("first", ["stream", "safe_open"])
@pytest.mark.parametrize("way", ["stream", "safe_open"])
def test_a_later_process_reads_from_the_page_cache(source, digest, tmp_path, first, way):
    with mounted(source, tmp_path) as slow, held(first, slow.path), loading(way, slow.path, 2) as found:
        begin(found)
        assert [process.stdout.readline() for process in found] == ["begun\n"] * 2
        assert last_lines(found) == [digest] * 2
    assert WHOLE <= slow.counts["read_bytes"] <= WHOLE + LITTLE


def test_nothing_is_shared_unless_the_user_asks_for_it(source, digest, tmp_path, monkeypatch):
    monkeypatch.delenv("PAGESTREAM_SHARE")
    assert not _native.is_sharing()
    with mounted(source, tmp_path) as slow, held("stream", slow.path):
        assert not offers(slow.path)
        with loading("stream", slow.path, 1) as found:
            begin(found)
            assert found[0].stdout.readline() == "begun\n"
            assert last_lines(found) == [digest]
        with open_checkpoint(slow.path) as weights:
            assert "with PAGESTREAM_SHARE=on, processes of this user share open files" in weights.explain()
    # The second process has opened the files, which dropped their pages.
    assert slow.counts["read_bytes"] >= 2 * WHOLE


def test_nothing_is_left_when_all_are_killed(source, tmp_path):
    with mounted(source, tmp_path) as slow:
        with loading("safe_open", slow.path, 3) as found:
            begin(found)
            assert [process.stdout.readline() for process in found] == ["begun\n"] * 3
            assert offers(slow.path)
            for process in found:
                process.kill()
            for process in found:
                process.wait()
            assert until(lambda: not offers(slow.path))
        assert not [path for path in Path("/dev/shm").iterdir() if "pagestream" in path.name]


NOBODY = 65534


def asked(name, restriction="none", wrapper=()):
    """Returns how many files a name offers, or "refused" if no process has the name."""
    return output_of(PROGRAMS / "weights_processes/ask.py", name, restriction, wrapper=wrapper)


RESTRICTIONS = ["user", "real user", "group", "supplementary group", "capability", "no new privileges"]
RESTRICTIONS += ["seccomp", "landlock", "root"]


def test_a_process_with_other_rights_gets_nothing(source, tmp_path):
    if os.geteuid() != 0:
        real.missing("root, for changing rights")
    with mounted(source, tmp_path) as slow, held("safe_open", slow.path):
        names = offers(slow.path)
        assert len(names) == SHARDS
        assert {asked(name) for name in names} <= {"1", "2"}
        found = {restriction: asked(names[0], restriction) for restriction in RESTRICTIONS}
        assert found == dict.fromkeys(RESTRICTIONS, "0")


def test_a_file_is_not_passed_to_a_process_without_permission():
    """Another process of the same user belongs to the group that may read the file."""
    if os.geteuid() != 0:
        real.missing("root, for groups")
    program, group = PROGRAMS / "weights_processes/group.py", "2000"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "model.safetensors"
        tensors = {f"t{number}": np.full(MIB, number, "u1") for number in range(8)}
        safetensors.numpy.save_file(tensors, path)
        os.chown(path, 0, int(group))
        path.chmod(0o640)
        with start_python(program, "hold", path, NOBODY, group) as holder:
            assert holder.stdout.readline() == "held\n"
            assert output_of(program, "open", path, NOBODY, group) == "8"
            assert output_of(program, "open", path, NOBODY, "") == str(path)
            holder.communicate("\n")


def test_a_container_that_shares_the_network_gets_nothing(source, tmp_path):
    if os.geteuid() != 0:
        real.missing("root, for namespaces of mounts")
    elsewhere = (real.need_tool("unshare"), "--mount")
    with mounted(source, tmp_path) as slow, held("safe_open", slow.path):
        names = offers(slow.path)
        assert len(names) == SHARDS
        assert [asked(name, wrapper=elsewhere) for name in names] == ["0"] * SHARDS
        assert {asked(name) for name in names} <= {"1", "2"}
        # The container uses its own names.
        first, program = min(slow.path.iterdir()), PROGRAMS / "weights_processes/load.py"
        with processes(program, [("safe_open", slow.path)], wrapper=elsewhere) as [inside]:
            begin([inside])
            assert inside.stdout.readline() == "begun\n"
            assert until(lambda: name_of(first, process=inside.pid) in names_in_use())


@contextlib.contextmanager
def bound(names, user, message, *descriptors):
    """Binds names in another process. It answers with a message and descriptors, each given as KIND:PATH."""
    program = PROGRAMS / "weights_processes/squat.py"
    with contextlib.ExitStack() as ends:
        for name in names:
            process = ends.enter_context(start_python(program, name, user, message.hex(), *descriptors))
            ends.callback(process.kill)
            assert process.stdout.readline() == "bound\n"
        yield


def test_names_taken_by_another_user_block_no_reader(source, digest, tmp_path):
    with mounted(source, tmp_path, keep_cache=True) as slow:
        names = {name_of(path) for path in slow.path.iterdir()}
        with (
            bound(names, NOBODY, bytes(64), "read:/etc/hostname"),
            loading("safe_open", slow.path, 2) as found,
        ):
            begin(found)
            assert [process.stdout.readline() for process in found] == ["begun\n"] * 2
            assert last_lines(found) == [digest] * 2
    assert WHOLE <= slow.counts["read_bytes"] <= WHOLE + LITTLE


@pytest.mark.parametrize(
    "kinds",
    [["write"], ["both"], ["path"], ["direct"], ["other"], ["read", "path"], ["read", "other"], []],
    ids=lambda kinds: " and ".join(kinds) or "none",
)
def test_a_descriptor_that_is_not_the_file_opened_for_reading_is_not_used(source, digest, tmp_path, kinds):
    with mounted(source, tmp_path) as slow:
        first, second = sorted(slow.path.iterdir())
        given = [f"read:{second}" if kind == "other" else f"{kind}:{first}" for kind in kinds]
        with (
            bound([name_of(first)], os.geteuid(), stamp_of(first), *given),
            loading("safe_open", slow.path, 1) as found,
        ):
            begin(found)
            assert found[0].stdout.readline() == "begun\n"
            assert last_lines(found) == [digest]


def test_a_child_of_a_fork_leaves_the_offer_alone_and_does_not_answer(source, digest, tmp_path):
    with mounted(source, tmp_path) as slow, held("safe_open", slow.path) as holder:
        names = offers(slow.path)
        begin([holder])
        word, child = holder.stdout.readline().split()
        assert word == "forked"
        try:
            assert {asked(name) for name in names} <= {"1", "2"}
            # The child has inherited the sockets, but not the threads.
            holder.kill()
            holder.wait()
            assert offers(slow.path) == names
            with loading("safe_open", slow.path, 1) as found:
                begin(found)
                assert found[0].stdout.readline() == "begun\n"
                assert last_lines(found) == [digest]
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_without_a_page_cache_each_process_reads_for_itself_and_explain_says_so(source, digest, tmp_path):
    with mounted(source, tmp_path, direct_io=True) as slow:
        with loading("stream", slow.path, 2) as found:
            begin(found)
            assert [process.stdout.readline() for process in found] == ["begun\n"] * 2
            assert last_lines(found) == [digest] * 2
        with open_checkpoint(slow.path) as weights:
            assert "reads bypass the page cache: each process reads for itself" in weights.explain()
    assert slow.counts["read_bytes"] >= 2 * WHOLE


@contextlib.contextmanager
def mounted_apart(source, tmp_path):
    """With names like these, no process reads ahead from one file into the next."""
    apart = tmp_path / "apart"
    apart.mkdir()
    for name, path in zip("ab", sorted(source.iterdir()), strict=True):
        shutil.copy(path, apart / f"{name}.safetensors")
    with mounted(apart, tmp_path) as slow:
        yield slow


def told_until(process, word):
    """Resumes a process until it prints a word."""
    begin([process])
    while process.stdout.readline() != f"{word}\n":
        assert process.poll() is None


def test_a_process_that_comes_after_a_file_was_closed_finds_it_in_memory(source, tmp_path):
    """One process opened the file and another received it, and both closed it at the same time."""
    program = PROGRAMS / "weights_processes/load.py"
    with (
        mounted_apart(source, tmp_path) as slow,
        processes(program, [("leaves each file", slow.path)] * 3) as found,
    ):
        *together, late = found
        begin(together)
        for process in together:
            assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "closed\n"]
        # Processes keep closed files for less time than this.
        time.sleep(3)
        told_until(late, "closed")
    assert WHOLE // SHARDS <= slow.counts["read_bytes"] <= WHOLE // SHARDS + LITTLE


def test_a_process_one_file_behind_finds_it_in_memory(source, digest, tmp_path):
    """A closed file is kept for processes that are behind."""
    program = PROGRAMS / "weights_processes/load.py"
    with (
        mounted_apart(source, tmp_path) as slow,
        processes(program, [("leaves each file", slow.path), ("stays in each file", slow.path)]) as both,
    ):
        ahead, behind = both

        def open_files():
            links = [os.readlink(link) for link in Path(f"/proc/{ahead.pid}/fd").iterdir()]
            return [link for link in links if link.startswith(str(slow.path))]

        told_until(ahead, "closed")
        told_until(behind, "read")
        told_until(ahead, "closed")
        # This is longer than a process keeps files for itself.
        time.sleep(1.5)
        assert open_files()
        told_until(behind, "read")
        begin(both)
        assert last_lines(both) == [digest] * 2
    # The second file was read once.
    assert slow.counts["read_bytes"] <= WHOLE + WHOLE // SHARDS + LITTLE
