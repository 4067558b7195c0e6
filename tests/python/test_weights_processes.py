"""Plain processes of one node that load one checkpoint from a slow mount at the same time.

Where the mount has a page cache, that is what they share: a page that one of them is reading is locked,
others wait for it, and the kernel completes the read whatever becomes of the process. A file is opened by
one of them, where an opening would drop its pages; the others take it from that one.
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

from pagestream import MappedFile, open_checkpoint
from pagestream.safetensors import safe_open

from support import real
from support.offers import SECRET_BYTES, name_of, names_in_use, offers, secret, signs
from support.process import PROGRAMS, output_of, start_python, until
from support.together import begin, last_lines, processes

pytestmark = pytest.mark.slow

MIB = 1 << 20
SHARDS, TENSORS, TENSOR_BYTES = 2, 12, 2 * MIB
WHOLE = SHARDS * TENSORS * TENSOR_BYTES
# Headers, and what the kernel reads ahead of them.
LITTLE = MIB


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
    """Programs that have the files open, or are about to open them."""
    return processes(PROGRAMS / "weights_processes/load.py", [(way, folder)] * count)


# Each opening of a file drops its pages, unless the daemon keeps them.
WAYS = {
    "stream": ("stream", False),
    "stream, kept": ("stream", True),
    "safe_open": ("safe_open", False),
    "safe_open, kept": ("safe_open", True),
}
every_way = pytest.mark.parametrize(("way", "keeps"), WAYS.values(), ids=WAYS)


def late_bytes(way, keeps):
    """What is read again where one opens the first file while another reads it: all that it has."""
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
def test_one_that_dies_or_stalls_keeps_none_of_the_others(source, digest, tmp_path, way, keeps, stop):
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
        # What one that is killed had of a shard goes. While one is stopped, the others open what it offers,
        # perhaps at times at which each drops what the other had; and it opens what the others had.
        for_themselves = 2 if way == "safe_open" else 1
        most_bytes += for_themselves * WHOLE if stop == signal.SIGSTOP else WHOLE // SHARDS
    assert WHOLE <= slow.counts["read_bytes"] <= most_bytes


@contextlib.contextmanager
def loaded(way, folder):
    """Yields the checkpoint's files, open, once all of their tensors were used in this process."""
    with contextlib.ExitStack() as ends:
        if way == "stream":
            weights = ends.enter_context(open_checkpoint(folder))
            assert sum(array.nbytes for _, array in weights.stream()) == WHOLE
        else:
            files = [
                ends.enter_context(safe_open(path, "np")) for path in sorted(folder.glob("*.safetensors"))
            ]
            arrays = (file.get_tensor(name) for file in files for name in file.keys())  # noqa: SIM118 - as above
            assert sum(int(array.sum()) > 0 for array in arrays) == SHARDS * TENSORS
        yield ends


@pytest.mark.parametrize("first", ["stream", "safe_open"])
@pytest.mark.parametrize("way", ["stream", "safe_open"])
def test_one_that_comes_later_reads_what_is_in_memory(source, digest, tmp_path, first, way):
    with mounted(source, tmp_path) as slow:
        with loaded(first, slow.path), loading(way, slow.path, 2) as found:
            begin(found)
            assert [process.stdout.readline() for process in found] == ["begun\n"] * 2
            assert last_lines(found) == [digest] * 2
        assert until(lambda: not offers(slow.path))
    assert WHOLE <= slow.counts["read_bytes"] <= WHOLE + LITTLE


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
            assert until(lambda: not offers(slow.path) + signs(slow.path))
        assert not [path for path in Path("/dev/shm").iterdir() if "pagestream" in path.name]


NOBODY = 65534


def asked(name, user=None, wrapper=()):
    """How many files come from a name, or "refused" if nobody has it."""
    program, user = PROGRAMS / "weights_processes/ask.py", os.geteuid() if user is None else user
    return output_of(program, name, user, wrapper=wrapper)


def test_another_user_gets_nothing(source, tmp_path):
    with mounted(source, tmp_path) as slow, loaded("safe_open", slow.path):
        names = offers(slow.path)
        assert len(names) == SHARDS
        assert [asked(name, NOBODY) for name in names] == ["0"] * SHARDS
        assert {asked(name) for name in names} <= {"1", "2"}


def test_a_process_that_may_not_read_a_file_does_not_get_it_passed():
    """Another process of the same user is of the group that may."""
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
    with mounted(source, tmp_path) as slow, loaded("safe_open", slow.path):
        names = offers(slow.path)
        assert len(names) == SHARDS
        assert [asked(name, wrapper=elsewhere) for name in names] == ["0"] * SHARDS
        assert {asked(name) for name in names} <= {"1", "2"}
        # It has names of its own.
        first, program = min(slow.path.iterdir()), PROGRAMS / "weights_processes/load.py"
        with processes(program, [("safe_open", slow.path)], wrapper=elsewhere) as [inside]:
            begin([inside])
            assert inside.stdout.readline() == "begun\n"
            assert until(lambda: name_of(first, process=inside.pid) in names_in_use())


@contextlib.contextmanager
def taken_by_another_user(names):
    """Names that a process of another user has."""
    with contextlib.ExitStack() as ends:
        for name in names:
            process = ends.enter_context(start_python(PROGRAMS / "weights_processes/squat.py", name, NOBODY))
            ends.callback(process.kill)
            assert process.stdout.readline() == "bound\n"
        yield


def test_another_user_that_takes_the_names_it_has_seen_does_not_come_first_again(source, digest, tmp_path):
    if secret() == bytes(SECRET_BYTES):
        real.missing("a kernel that keeps keys")
    with mounted(source, tmp_path) as slow:
        with loaded("safe_open", slow.path):
            seen = offers(slow.path)
        assert len(seen) == SHARDS
        assert until(lambda: not offers(slow.path))
        with taken_by_another_user(seen), loading("safe_open", slow.path, 4) as found:
            begin(found)
            assert [process.stdout.readline() for process in found] == ["begun\n"] * 4
            assert set(offers(slow.path)) - set(seen)
            assert last_lines(found) == [digest] * 4
    # Once before, and once by those that load together, of which one may open the first file late.
    assert 2 * WHOLE <= slow.counts["read_bytes"] <= 2 * (WHOLE + LITTLE) + late_bytes("safe_open", False)


def test_without_keys_another_user_that_has_the_names_keeps_nobody_from_reading(source, digest, tmp_path):
    """Many containers may not use the kernel's keyrings."""
    without_keys = (real.need_tool("strace"), "-f", "-qq", "-o", "/dev/null")
    without_keys += ("-e", "trace=keyctl,add_key", "-e", "inject=keyctl,add_key:error=EPERM")
    with mounted(source, tmp_path, keep_cache=True) as slow:
        names = {name_of(path, known=bytes(SECRET_BYTES)) for path in slow.path.iterdir()}
        program, ways = PROGRAMS / "weights_processes/load.py", [("safe_open", slow.path)] * 2
        with taken_by_another_user(names), processes(program, ways, wrapper=without_keys) as found:
            begin(found)
            assert [process.stdout.readline() for process in found] == ["begun\n"] * 2
            assert not offers(slow.path)
            assert last_lines(found) == [digest] * 2
    assert WHOLE <= slow.counts["read_bytes"] <= WHOLE + LITTLE


def fork_that_waits(before=lambda: None):
    """Returns a child that calls something and ends once the last descriptor, of a pipe, is closed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(write)
            before()
            os.read(read, 1)
            os._exit(0)
        finally:
            os._exit(1)
    return child, read, write


def test_a_child_of_a_fork_leaves_the_offer_alone_and_does_not_keep_it(source, tmp_path):
    with mounted(source, tmp_path) as slow:
        with loaded("safe_open", slow.path) as files:
            names = offers(slow.path)
            child, read, write = fork_that_waits()
            other_child, *ends = fork_that_waits(files.close)
            os.close(ends[1])
            assert os.waitpid(other_child, 0)[1] == 0
            assert [asked(name) in {"1", "2"} for name in names] == [True] * SHARDS
        answers = [asked(name) for name in names]
        os.close(write)
        assert os.waitpid(child, 0)[1] == 0
        os.close(read)
        os.close(ends[0])
        assert answers == ["refused"] * SHARDS


def test_without_a_page_cache_each_process_reads_for_itself_and_it_is_said(source, digest, tmp_path):
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
    """Nobody reads ahead from one file to another of such names."""
    apart = tmp_path / "apart"
    apart.mkdir()
    for name, path in zip("ab", sorted(source.iterdir()), strict=True):
        shutil.copy(path, apart / f"{name}.safetensors")
    with mounted(apart, tmp_path) as slow:
        yield slow


def told_until(process, word):
    """Has a process go on until it prints a word."""
    begin([process])
    while process.stdout.readline() != f"{word}\n":
        assert process.poll() is None


def test_one_that_comes_when_others_have_closed_a_file_finds_it_in_memory(source, tmp_path):
    """One of them has opened it, and the other has taken it: both were done with it at the same time."""
    program = PROGRAMS / "weights_processes/load.py"
    with (
        mounted_apart(source, tmp_path) as slow,
        processes(program, [("leaves each file", slow.path)] * 3) as found,
    ):
        *together, late = found
        begin(together)
        for process in together:
            assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "closed\n"]
        # Longer than a process keeps files for itself.
        time.sleep(3)
        told_until(late, "closed")
    assert WHOLE // SHARDS <= slow.counts["read_bytes"] <= WHOLE // SHARDS + LITTLE


def test_one_that_is_a_file_behind_finds_it_in_memory(source, digest, tmp_path):
    """A file that was closed is kept for those that are behind, and for nobody else."""
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
        assert until(lambda: not open_files()), "nobody is behind"
        told_until(behind, "read")
        told_until(ahead, "closed")
        # Longer than a process keeps files for itself.
        time.sleep(1.5)
        assert open_files()
        told_until(behind, "read")
        begin(both)
        assert last_lines(both) == [digest] * 2
    # The second file was read once.
    assert slow.counts["read_bytes"] <= WHOLE + WHOLE // SHARDS + LITTLE
