"""Checkpoints that the ranks of a process group load together. `support.rank_checks` has what they do."""

import contextlib
import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save_file

from support import rank_checks, real
from support.process import PROGRAMS, start_python
from support.ranks import accelerate_launch, run_ranks, torchrun

SIZES = (1, 2, 4)
# Of the checkpoint that nodes load, in tensors of 1 MiB.
NODE_MIB = 64
WAYS_OF_ALL = ("whole", "rows", "columns", "rows in turn", "readers")
WAYS_OF_HALF = ("half of the rows in turn", "columns with gaps")
pytestmark = pytest.mark.timeout(300)


def write_checkpoint(folder):
    """Two files with tensors of many types and shapes."""
    torch.manual_seed(0)
    for part in range(2):
        tensors = {f"layers.{part}.matrix.{number}": torch.randn(300, 1000) for number in range(4)}
        tensors |= {
            f"layers.{part}.half": torch.randn(257, 513).to(torch.bfloat16),
            f"layers.{part}.norm": torch.randn(77),
            f"layers.{part}.experts": torch.randn(9, 33, 65).to(torch.float16),
            f"layers.{part}.places": torch.arange(1000).reshape(10, 100),
            f"layers.{part}.scale": torch.tensor(part + 0.5),
            f"layers.{part}.empty": torch.empty(0, 4),
            f"layers.{part}.eighths": torch.randn(64, 64).to(torch.float8_e4m3fn),
            f"layers.{part}.large": torch.randn(1200, 3000),
        }
        save_file(tensors, folder / f"model-{part}.safetensors")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What the checks of each number of ranks gave, by number and check, a list with one for each rank."""
    folders = {size: tmp_path_factory.mktemp(f"ranks{size}") for size in SIZES}

    def checked(size):
        results = folders[size]
        # Reads that bypass the page cache are shared.
        with real.slow_fuse(results / "source", results / "mount", direct_io=True):
            run_ranks(size, rank_checks.__file__, results)

    for results in folders.values():
        (results / "source").mkdir()
        write_checkpoint(results / "source")
    # They wait for one another much of the time.
    with ThreadPoolExecutor(len(SIZES)) as pool:
        list(pool.map(checked, SIZES))
    found = {}
    for size, results in folders.items():
        for rank in range(size):
            for line in (results / str(rank)).read_text().splitlines():
                each = json.loads(line)
                found.setdefault((size, each["check"]), []).append(each["failed"])
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", rank_checks.CHECKS)
def test_ranks(outcomes, size, name):
    assert outcomes[size, name] == [None] * size, "\n".join(filter(None, outcomes[size, name]))


def started(folder, *, program=PROGRAMS / "torch_ranks/loads.py", **environment):
    """Starts three ranks that load a folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3", **environment}
    return [start_python(program, folder, RANK=str(rank), **place) for rank in range(3)]


@pytest.mark.parametrize(
    ("gone", "signal_name", "told"),
    [
        (0, "SIGKILL", "store cannot be reached"),
        (0, "SIGSTOP", "store has not answered"),
        (2, "SIGKILL", "no sign of life"),
    ],
)
def test_a_rank_that_is_gone_is_named_within_ten_seconds(tmp_path, gone, signal_name, told):
    """Rank 0 has the store of the group: without it nobody knows what became of the others."""
    write_checkpoint(tmp_path)
    ranks = started(tmp_path)
    try:
        assert len({each.stdout.readline() for each in ranks}) == 1
        ranks[gone].send_signal(signal.Signals[signal_name])
        for rank, each in enumerate(ranks):
            if rank == gone:
                continue
            output = each.communicate("\n" * 100)[0]
            found, message, seconds = json.loads(output.splitlines()[-1])
            assert found == (None if gone == 0 else gone), message
            assert told in message
            assert seconds < 10
    finally:
        for each in ranks:
            each.kill()
            each.communicate()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_ends_with_its_iterator_open_says_why(tmp_path, failing):
    write_checkpoint(tmp_path)
    ranks = started(tmp_path, program=PROGRAMS / "torch_ranks/ends.py", FAILING_RANK=str(failing))
    found = [each.communicate()[0] for each in ranks]
    assert [each.returncode for each in ranks] == [rank == failing for rank in range(3)]
    for output in [*found[:failing], *found[failing + 1 :]]:
        kind, message, seconds, _ = json.loads(output)
        assert kind == "RankError"
        assert message == f"rank {failing} of the process group: ZeroDivisionError: in the end"
        assert seconds < 10


def test_a_rank_that_does_not_begin_is_waited_for_as_long_as_the_group_says(tmp_path):
    write_checkpoint(tmp_path)
    program = PROGRAMS / "torch_ranks/ends.py"
    ranks = started(tmp_path, program=program, ABSENT_RANK="1", TIMEOUT_SECONDS="3")
    found = [ranks[rank].communicate()[0] for rank in (0, 2)]
    ranks[1].communicate("\n")
    errors = [json.loads(output) for output in found]
    # The first one that gives up tells the others.
    assert {kind for kind, *_ in errors} <= {"TimeoutError", "RankError"}
    for _, message, seconds, logged in errors:
        assert "process_group: rank 1 did not come within 3 s, the time-out of the group" in message
        assert seconds >= 3
        assert len(logged) == 1
        assert "waits for rank 1;" in logged[0]


def test_the_rank_with_the_store_waits_for_those_that_are_slow_to_leave(tmp_path):
    write_checkpoint(tmp_path)
    program = PROGRAMS / "torch_ranks/leaves.py"
    ranks = started(tmp_path, program=program)
    assert [each.communicate()[0] for each in ranks] == ["done\n"] * 3
    assert [each.returncode for each in ranks] == [0] * 3


def test_a_store_in_a_file_is_gone_with_the_last_rank(tmp_path):
    (tmp_path / "weights").mkdir()
    write_checkpoint(tmp_path / "weights")
    store = tmp_path / "store"
    program = PROGRAMS / "torch_ranks/leaves.py"
    ranks = started(tmp_path / "weights", program=program, STORE=f"file://{store}")
    assert [each.communicate()[0] for each in ranks] == ["done\n"] * 3
    assert not store.exists()


@pytest.mark.parametrize(("signal_name", "by_reader"), [("SIGSTOP", ""), ("SIGKILL", "yes")])
def test_a_rank_that_stops_in_an_exchange_is_named_within_ten_seconds(tmp_path, signal_name, by_reader):
    """The others are in a collective, which alone would wait for half an hour."""
    (tmp_path / "source").mkdir()
    write_checkpoint(tmp_path / "source")
    with real.slow_fuse(tmp_path / "source", tmp_path / "mount", direct_io=True) as mount:
        ranks = started(mount.path, STOPPED_RANK="1", STOPPED_BY=signal_name, BY_READER=by_reader)
        try:
            for each in ranks:
                each.stdin.write("\n" * 100)
                each.stdin.flush()
            for rank in (0, 2):
                output = ranks[rank].communicate()[0]
                found, message, seconds = json.loads(output.splitlines()[-1])
                assert found == 1, message
                assert "no sign of life" in message
                assert seconds < 10
        finally:
            for each in ranks:
                each.kill()
                each.communicate()


@pytest.mark.parametrize(
    ("ways", "count", "launch"),
    [
        ((*WAYS_OF_ALL, *WAYS_OF_HALF), 4, torchrun),
        (("whole",), 8, torchrun),
        (("whole",), 2, accelerate_launch),
    ],
    ids=["four", "eight", "by accelerate"],
)
def test_each_byte_leaves_the_store_once(tmp_path, ways, count, launch):
    """Each rank is a node with mounts of its own, one for each way, whose reads are counted."""
    source = tmp_path / "source"
    source.mkdir()
    tensors = {
        f"t{number:02}": torch.full((1024, 1024), number, dtype=torch.uint8) for number in range(NODE_MIB)
    }
    save_file(tensors, source / "model.safetensors")
    nodes = {way: [] for way in ways}
    with contextlib.ExitStack() as mounts:
        for way, nodes_of_way in nodes.items():
            (tmp_path / way).mkdir()
            for rank in range(count):
                mount = real.slow_fuse(source, tmp_path / way / str(rank), delay_ms=1)
                nodes_of_way.append(mounts.enter_context(mount))
        folders = [tmp_path / way for way in ways]
        run_ranks(count, PROGRAMS / "torch_ranks/node.py", *folders, launch=launch)
    whole = NODE_MIB << 20
    for way, nodes_of_way in nodes.items():
        read_bytes = [node.counts["read_bytes"] for node in nodes_of_way]
        # The header is read by all, and a page that two ranks have some of by both. Short gaps are read, too.
        assert whole // (1 + (way in WAYS_OF_HALF)) <= sum(read_bytes) <= 1.1 * whole, (way, read_bytes)
        assert max(read_bytes) <= 1.3 * whole / count, (way, read_bytes)
