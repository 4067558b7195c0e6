"""Checkpoints that the ranks of a process group load together. `support.rank_checks` has the checks."""

import contextlib
import json
import os
import signal
import socket
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save_file

from pagestream.torch import _meeting
from pagestream.torch._lifelines import Lifeline, Watch

from support import rank_checks, real
from support.process import PROGRAMS, start_python
from support.ranks import GLOO, accelerate_launch, run_ranks, torchrun

LOADS = PROGRAMS / "torch_ranks/loads.py"
SIZES = (1, 2, 4)
# The size of the checkpoint that nodes load, in tensors of 1 MiB.
NODE_MIB = 32
WAYS_OF_ALL = ("whole", "rows", "columns", "rows in turn", "readers")
WAYS_OF_HALF = ("half of the rows in turn", "columns with gaps")


def write_checkpoint(folder):
    """Writes two files with tensors of many types and shapes."""
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
            # The first of these is larger than a piece of 8 MiB.
            f"layers.{part}.large": torch.randn((760, 300)[part], 3000),
        }
        save_file(tensors, folder / f"model-{part}.safetensors")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Returns the results by number of ranks and check. Each is a list with one entry per rank."""
    folders = {size: tmp_path_factory.mktemp(f"ranks{size}") for size in SIZES}

    def checked(size):
        results = folders[size]
        # Ranks share reads only if these bypass the page cache.
        with real.slow_fuse(results / "source", results / "mount", direct_io=True):
            run_ranks(size, rank_checks.__file__, results)

    for results in folders.values():
        (results / "source").mkdir()
        write_checkpoint(results / "source")
    # Ranks mostly wait for one another, so the groups run at the same time.
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


@contextlib.contextmanager
def started(folder, *, program=LOADS, by_rank=None, has_brief_end=True, **environment):
    """Starts three ranks that load a folder. `by_rank` holds the variables of individual ranks."""
    # This socket and the store both bind the port, and only the store listens: no other program gets it.
    with socket.socket() as place, contextlib.ExitStack() as ends:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3", **GLOO}
        ranks = []
        for rank in range(3):
            own = {"RANK": str(rank), **(by_rank or {}).get(rank, {})}
            options = {"with_torch": True, "has_brief_end": has_brief_end}
            ranks.append(start_python(program, folder, **options, **environment, **own))
            ends.callback(ranks[-1].communicate)
            ends.callback(ranks[-1].kill)
        yield ranks


def last_words(ranks):
    """Lets the ranks finish, and returns the last line of each. No input closes before all have printed."""
    for each in ranks:
        each.stdin.write("\n" * 100)
        each.stdin.flush()
    # This line is a list. All other lines are names.
    found = [next(line for line in each.stdout if line.startswith("[")) for each in ranks]
    for each in ranks:
        each.communicate()
    return [json.loads(line) for line in found]


@pytest.mark.parametrize(
    ("gone", "signal_name", "hurrying", "told"),
    [
        (0, "SIGKILL", {}, "store cannot be reached"),
        (0, "SIGSTOP", {1: "store", 2: "store"}, "store has not answered"),
        (2, "SIGKILL", {}, "its process has ended"),
        (2, "SIGSTOP", {1: "rank"}, "no sign of life"),
    ],
)
def test_a_missing_rank_is_named(tmp_path, gone, signal_name, hurrying, told):
    """Rank 0 hosts the store of the group. Without it, no rank can tell which rank has failed."""
    write_checkpoint(tmp_path)
    by_rank = {rank: {"HURRIES": what} for rank, what in hurrying.items()}
    with started(tmp_path, by_rank=by_rank, HURRY=str(tmp_path / "hurry")) as ranks:
        assert len({each.stdout.readline() for each in ranks}) == 1
        ranks[gone].send_signal(signal.Signals[signal_name])
        (tmp_path / "hurry").touch()
        for found, message in last_words([*ranks[:gone], *ranks[gone + 1 :]]):
            assert found == (None if gone == 0 else gone), message
            assert told in message


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_rank_that_ends_with_its_first_tensor_is_named(tmp_path, is_shared):
    """Beats are so rare that the other ranks connect in time only if the load waits for them."""
    (tmp_path / "source").mkdir()
    write_checkpoint(tmp_path / "source")
    with contextlib.ExitStack() as ends:
        folder = tmp_path / "source"
        if is_shared:
            folder = ends.enter_context(real.slow_fuse(folder, tmp_path / "mount", direct_io=True)).path
        ranks = ends.enter_context(started(folder, BEAT_SECONDS="2.5", KILLED_RANK="2"))
        for found, message in last_words(ranks[:2]):
            assert found == 2, message
            assert "its process has ended" in message


def test_a_store_that_stops_while_ranks_connect_is_named(tmp_path):
    write_checkpoint(tmp_path)
    stopped = {"STOPPED_RANK": "0", "STOPPED_BY": "SIGSTOP", "STOPPED_IN": "connect"}
    by_rank = {rank: {"HURRIES": "store", "NEVER_WATCHES": "yes"} for rank in (1, 2)}
    with started(tmp_path, by_rank=by_rank, HURRY=str(tmp_path / "hurry"), **stopped) as ranks:
        for found, message in last_words(ranks[1:]):
            assert found is None, message
            assert "store has not answered" in message


def test_a_rank_that_pauses_for_a_minute_is_waited_for(tmp_path):
    """A rank may pause in a debugger, in a long garbage collection, or while its virtual machine migrates."""
    write_checkpoint(tmp_path)
    hurry = tmp_path / "hurry"
    with started(tmp_path, by_rank={1: {"HURRIES": "minute"}}, HURRY=str(hurry)) as ranks:
        assert len({each.stdout.readline() for each in ranks}) == 1
        ranks[2].send_signal(signal.SIGSTOP)
        for each in ranks[:2]:
            each.stdin.write("\n" * 100)
            each.stdin.flush()
        hurry.touch()
        while not hurry.with_suffix(".looked").exists():
            time.sleep(0.01)
        ranks[2].send_signal(signal.SIGCONT)
        assert last_words(ranks) == [[None, "24 tensors"]] * 3


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_ends_with_its_iterator_open_says_why(tmp_path, failing):
    write_checkpoint(tmp_path)
    program = PROGRAMS / "torch_ranks/ends.py"
    with started(tmp_path, program=program, FAILING_RANK=str(failing)) as ranks:
        ranks[failing].communicate()
        assert ranks[failing].returncode == 1
        for kind, message, _, _ in last_words([*ranks[:failing], *ranks[failing + 1 :]]):
            assert kind == "RankError"
            assert message == f"rank {failing} of the process group: ZeroDivisionError: in the end"
        assert [each.returncode for each in ranks] == [rank == failing for rank in range(3)]


def test_a_rank_that_does_not_begin_is_waited_for_as_long_as_the_group_says(tmp_path):
    write_checkpoint(tmp_path)
    program = PROGRAMS / "torch_ranks/ends.py"
    with started(tmp_path, program=program, ABSENT_RANK="1", TIMEOUT_SECONDS="3") as ranks:
        errors = last_words([ranks[0], ranks[2]])
    # The first rank to give up tells all ranks.
    assert {kind for kind, *_ in errors} <= {"TimeoutError", "RankError"}
    for _, message, seconds, logged in errors:
        assert "process_group: rank 1 did not join the load within 3 s, the time-out of the group" in message
        assert seconds >= 3
        assert len(logged) == 1
        assert "waits for rank" in logged[0]


def test_the_rank_with_the_store_waits_for_those_that_are_slow_to_leave(tmp_path):
    write_checkpoint(tmp_path)
    with started(tmp_path, program=PROGRAMS / "torch_ranks/leaves.py") as ranks:
        assert [each.communicate()[0] for each in ranks] == ["done\n"] * 3
        assert [each.returncode for each in ranks] == [0] * 3


def test_a_store_in_a_file_is_gone_with_the_last_rank(tmp_path):
    (tmp_path / "weights").mkdir()
    write_checkpoint(tmp_path / "weights")
    store = tmp_path / "store"
    program = PROGRAMS / "torch_ranks/leaves.py"
    with started(
        tmp_path / "weights", program=program, has_brief_end=False, STORE=f"file://{store}"
    ) as ranks:
        assert [each.communicate()[0] for each in ranks] == ["done\n"] * 3
    assert not store.exists()


@pytest.mark.parametrize(
    ("signal_name", "by_reader", "told"),
    [("SIGSTOP", "", "no sign of life"), ("SIGKILL", "yes", "its process has ended")],
)
def test_a_rank_that_stops_in_an_exchange_is_named(tmp_path, signal_name, by_reader, told):
    """The other ranks are in a collective operation, which by itself would wait for half an hour."""
    (tmp_path / "source").mkdir()
    write_checkpoint(tmp_path / "source")
    stopped = {"STOPPED_RANK": "1", "STOPPED_BY": signal_name, "BY_READER": by_reader}
    hurry = {"HURRY": str(tmp_path / "hurry")}
    by_rank = {0: {"HURRIES": "rank" if signal_name == "SIGSTOP" else ""}}
    with (
        real.slow_fuse(tmp_path / "source", tmp_path / "mount", direct_io=True) as mount,
        started(mount.path, by_rank=by_rank, **stopped, **hurry) as ranks,
    ):
        ranks[1].stdin.write("\n" * 100)
        ranks[1].stdin.flush()
        for found, message in last_words([ranks[0], ranks[2]]):
            assert found == 1, message
            assert told in message


@pytest.fixture
def store():
    return torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class Group:
    rank, size = 0, 2


@pytest.mark.parametrize(("is_cut", "looks", "told"), [(True, 5, "has ended"), (False, 121, "no sign")])
def test_a_rank_has_a_minute_while_its_connection_is_open(store, is_cut, looks, told):
    beats = _meeting._Beats(Group, store)
    with Lifeline(store) as lifeline:
        first, second = (f"{number} {lifeline.address}" for number in range(2))
        assert beats._is_gone(first) is None
        if is_cut:
            lifeline.close()
        # The second beat restarts the count.
        assert {beats._is_gone(each) for each in [first] * (looks - 1) + [second] * looks} == {None}
        assert told in beats._is_gone(second)
    beats._let_go()


def test_a_connection_that_never_existed_is_not_cut(store):
    with Lifeline(store) as lifeline:
        address = lifeline.address
    for nowhere in (address, ""):
        watch = Watch(nowhere)
        assert [watch.is_cut() for _ in range(3)] == [False] * 3
        assert not watch.stands
        watch.close()


def test_a_store_in_a_file_has_no_connections(tmp_path):
    with Lifeline(torch.distributed.FileStore(str(tmp_path / "store"), 1)) as lifeline:
        assert lifeline.address == ""


def test_a_child_of_fork_does_not_keep_the_connections_of_its_parent(store):
    ends, theirs = socket.socketpair()
    with Lifeline(store) as lifeline, ends, theirs:
        watch = Watch(lifeline.address)
        assert not watch.is_cut()
        with warnings.catch_warnings(action="ignore"):
            child = os.fork()
        if not child:
            ends.close()
            theirs.send(b"-")
            theirs.recv(1)
            os._exit(0)
        try:
            ends.recv(1)
            lifeline.close()
            assert watch.is_cut()
        finally:
            ends.close()
            os.waitpid(child, 0)
            watch.close()


@pytest.mark.parametrize(
    ("ways", "count", "launch"),
    [
        ((*WAYS_OF_ALL, *WAYS_OF_HALF), 4, None),
        (("whole",), 8, None),
        (("whole",), 2, torchrun),
        (("whole",), 2, accelerate_launch),
    ],
    ids=["four", "eight", "by torchrun", "by accelerate"],
)
def test_each_byte_leaves_the_store_once(tmp_path, ways, count, launch):
    """Each rank is a node with its own mounts, one for each way. The mounts count their reads."""
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
                mount = real.slow_fuse(source, tmp_path / way / str(rank), delay_ms=1, direct_io=True)
                nodes_of_way.append(mounts.enter_context(mount))
        folders = [tmp_path / way for way in ways]
        run_ranks(count, PROGRAMS / "torch_ranks/node.py", *folders, launch=launch)
    whole = NODE_MIB << 20
    for way, nodes_of_way in nodes.items():
        read_bytes = [node.counts["read_bytes"] for node in nodes_of_way]
        # All ranks read the header and the short gaps. The mounts have no page cache, so no rank reads a page
        # that it did not request.
        assert whole // (1 + (way in WAYS_OF_HALF)) <= sum(read_bytes) <= 1.01 * whole, (way, read_bytes)
        assert max(read_bytes) <= 1.01 * whole / count, (way, read_bytes)
