"""The checks on NFS: functions that run in sequence in a User Mode Linux guest (`nfs_guest`).

Each check takes a mount and raises an error if it finds a problem. It runs in its own process, so that a
crash is a result too. The mount's server side is a folder of the same guest: a change there looks like a
change by another client.
"""

import errno
import faulthandler
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

MIB = 1 << 20
# Most checks make a checkpoint of this many tensors of 1 MiB, in two files.
TENSORS = 8
# A lead needs a file of 16 MiB.
LEAD_TENSORS = 20
# These deadlines detect a hang. The longest check took 120 s next to four busy loops.
CHECK_SECONDS = 1200
STEP_SECONDS = CHECK_SECONDS / 2
# The client caches attributes for this long (actimeo of the mounts).
ATTRIBUTES_HOLD_SECONDS = 1
MODES = ("auto", "shared", "private", "read")
STRATEGIES = ("auto", "mapped", "pread")
# Strategies of a stream whose file changes. "ahead" also yields views of the page cache.
ALL_STRATEGIES = (*STRATEGIES, "ahead", "direct")
VIEWS = ("mapped", "ahead")
CHANGES = ("cut", "replaced", "rewritten", "deleted")


@dataclass(frozen=True)
class Mount:
    """A mount of the server. If the server does not answer, a soft mount fails and a hard mount waits."""

    version: str
    folder: Path
    served: Path
    hard: Path | None


MOUNTS = {
    "v3": Mount("3", Path("/mnt/v3"), Path("/mnt/srv"), Path("/mnt/hard")),
    "v4": Mount("4.2", Path("/mnt/v4"), Path("/mnt/srv"), None),
}


@cache
def tensor(number, salt=0):
    made = np.random.default_rng([number, salt]).integers(0, 256, MIB, dtype=np.uint8)
    made.flags.writeable = False
    return made


def content(numbers, salt=0):
    """Returns a safetensors file whose length depends only on the range."""
    entries = {
        f"t{number:02}": {"dtype": "U8", "shape": [MIB], "data_offsets": [place * MIB, (place + 1) * MIB]}
        for place, number in enumerate(numbers)
    }
    header = json.dumps(entries).encode()
    return (
        len(header).to_bytes(8, "little")
        + header
        + b"".join(tensor(number, salt).tobytes() for number in numbers)
    )


def shards(folder):
    """Writes a checkpoint of two files on the server side."""
    folder.mkdir()
    half = TENSORS // 2
    paths = [folder / f"model-{part}.safetensors" for part in (1, 2)]
    for part, path in enumerate(paths):
        path.write_bytes(content(range(part * half, (part + 1) * half)))
    return paths


def number_of(name):
    return int(name[1:])


def is_right(name, array):
    return bool(np.array_equal(np.asarray(array), tensor(number_of(name), 0)))


def drop_caches():
    """Drops the client's page cache, including mapped files."""
    Path("/proc/sys/vm/drop_caches").write_text("1")


def forget(path):
    """Drops a file, or the files of a folder, from the client's page cache, except for mapped pages."""
    for file in path.iterdir() if path.is_dir() else [path]:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def change(how, path):
    """Changes the second file of a checkpoint on the server side."""
    half = TENSORS // 2
    new = content(range(half, TENSORS), salt=1)
    if how == "cut":
        os.truncate(path, MIB)
    elif how == "replaced":
        path.with_suffix(".new").write_bytes(new)
        path.with_suffix(".new").replace(path)
    elif how == "rewritten":
        with path.open("r+b") as file:
            file.write(new)
    else:
        path.unlink()


def read_counts(folder):
    """Returns the bytes that the client received by READ, and the total milliseconds of its requests."""
    mounts = Path("/proc/self/mountstats").read_text()
    of_mount = mounts.split(f"mounted on {folder} ")[1].split("\ndevice ")[0]
    counts = re.search(r"^\s*READ: (.*)$", of_mount, re.MULTILINE)[1].split()
    return int(counts[4]), int(counts[6])


def serve(threads):
    """Sets the number of server threads. 0 stops the server."""
    subprocess.run(["rpc.nfsd", str(threads)], check=True)


@contextmanager
def server_stopped():
    """Stops the server for all checks that need an outage; see `outage`."""
    OUTAGE.wait(STEP_SECONDS)
    OUTAGE.wait(STEP_SECONDS)
    try:
        yield
    finally:
        OUTAGE.wait(STEP_SECONDS)
        OUTAGE.wait(STEP_SECONDS)


def outage():
    """Stops the server once all checks are ready, and restarts it once all are done."""
    try:
        OUTAGE.wait(STEP_SECONDS)
        serve(0)
        OUTAGE.wait(STEP_SECONDS)
        OUTAGE.wait(STEP_SECONDS)
    finally:
        serve(8)
    OUTAGE.wait(STEP_SECONDS)


# --- opening and reading ----------------------------------------------------------------------


def modes_and_facts(mount, here):
    from pagestream import MappedFile

    data = os.urandom(5 * MIB + 123)
    (mount.served / here / "data").write_bytes(data)
    path = mount.folder / here / "data"
    for mode in MODES:
        with MappedFile(path, mode=mode) as file:
            assert file.mode == ("shared" if mode == "auto" else mode), (mode, file.mode)
            assert file.reason is None
            assert file.file_system.type == ("nfs" if mount.version == "3" else "nfs4")
            assert file.file_system.is_network
            assert f"vers={mount.version}" in str(file.file_system.options)
            assert file.read() == data
            assert file.read(4 * MIB - 7, 1000) == data[4 * MIB - 7 :][:1000]
            if mode != "read":
                assert np.frombuffer(file, "u1").tobytes() == data
                assert file.residency().fraction == 1.0
            file.check()


def cold_pages_are_told(mount, here):
    from pagestream import MappedFile, open_checkpoint

    first, _ = shards(mount.served / here / "model")
    path = mount.folder / here / "model" / first.name
    with MappedFile(path) as file:
        file.read()
        assert file.residency().fraction == 1.0
        file.evict()
        assert file.residency().fraction == 0.0
        file.read(0, 4096)
        assert 0 < file.residency().fraction < 1
    with open_checkpoint(mount.folder / here / "model") as weights:
        assert (weights.mode, weights.reason) == ("shared", None)
        assert len(weights) == TENSORS


def tokens(mount, here):
    from pagestream import TokenLoader, open_tokens

    values = np.random.default_rng(5).integers(0, 1 << 16, 1 << 18, dtype=np.uint16)
    values.tofile(mount.served / here / "tokens.bin")
    path = mount.folder / here / "tokens.bin"
    for mode in MODES:
        forget(path)
        with open_tokens(path, mmap_mode=mode) as corpus:
            assert np.array_equal(corpus.read(12_345, 175_000), values[12_345:175_000])
        options = {"sequence_length": 256, "batch_size": 8, "epochs": 1, "seed": 1, "drop_last": False}
        with TokenLoader(path, mmap_mode=mode, target="none", dtype="raw", **options) as loader:
            rows = np.concatenate(list(loader))
        whole = values[: len(values) // 256 * 256].reshape(-1, 256)
        assert sorted(map(bytes, rows)) == sorted(map(bytes, whole)), mode


def holes(mount, here):
    from pagestream import open_checkpoint

    for path in shards(mount.served / here / "model"):
        size = path.stat().st_size
        os.truncate(path, 2 * MIB)
        os.truncate(path, size)
    with open_checkpoint(mount.folder / here / "model") as weights:
        # NFS has supported SEEK since version 4.2.
        assert len(weights.warnings) == (0 if mount.version == "3" else 2)
        assert all("the first at byte 2,097,152, in 3 tensors" in warning for warning in weights.warnings)


def weights_bit_for_bit(mount, here):
    import safetensors

    from pagestream import open_checkpoint
    from pagestream.safetensors import safe_open
    from pagestream.safetensors.numpy import load_file

    served = shards(mount.served / here / "model")
    folder = mount.folder / here / "model"
    for path in (folder / path.name for path in served):
        forget(folder)
        with safetensors.safe_open(path, "np") as stock:
            expected = {name: stock.get_tensor(name) for name in stock.keys()}  # noqa: SIM118 - no iterator
        for mode in MODES:
            forget(folder)
            with safe_open(path, "np", mmap_mode=mode) as file:
                assert file.keys() == sorted(expected)
                for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                    assert np.array_equal(file.get_tensor(name), expected[name]), (mode, name)
                    part = file.get_slice(name)[1000:500_000:3]
                    assert np.array_equal(part, expected[name][1000:500_000:3])
        forget(folder)
        for name, array in load_file(path).items():
            assert np.array_equal(array, expected[name])
    for mode in MODES:
        forget(folder)
        with open_checkpoint(folder, mmap_mode=mode) as weights:
            assert all(is_right(name, array) for name, array in weights.items())
            for strategy in STRATEGIES:
                if mode == "read" and strategy == "mapped":
                    continue
                forget(folder)
                found = dict(weights.stream(strategy=strategy))
                assert list(found) == list(weights)
                assert all(is_right(name, array) for name, array in found.items()), (mode, strategy)


def read_ahead(mount, here):
    """Reads a file that is large enough for a lead. Each byte must be right and requested once."""
    import pagestream.safetensors
    from pagestream import open_checkpoint

    served = mount.served / here / "model.safetensors"
    served.write_bytes(content(range(LEAD_TENSORS)))
    path = mount.folder / here / served.name

    def by_safe_open():
        with pagestream.safetensors.install():
            import safetensors

            with safetensors.safe_open(path, "np") as file:
                assert type(file).__module__.startswith("pagestream")
                return {name: file.get_tensor(name).copy() for name in file.keys()}  # noqa: SIM118

    def by_stream():
        with open_checkpoint(path) as weights:
            return dict(weights.stream())

    for load in (by_safe_open, by_stream):
        forget(path)
        before, _ = read_counts(mount.folder)
        found = load()
        after, _ = read_counts(mount.folder)
        assert len(found) == LEAD_TENSORS
        assert all(is_right(name, array) for name, array in found.items())
        assert LEAD_TENSORS * MIB <= after - before <= 1.1 * LEAD_TENSORS * MIB


def ranks_share_the_reads(mount, here):
    """Two ranks with different clients together receive each byte from the server once."""
    import torch.distributed as dist

    from pagestream.torch import stream_checkpoint

    served = shards(mount.served / here / "model")
    size_bytes = sum(path.stat().st_size for path in served)
    clients = [each.folder for each in MOUNTS.values()]
    meeting = Path(f"/mnt/tmp/ranks-{here}")

    def load(rank):
        # The guest's host name has no address.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=len(clients))
        stream = stream_checkpoint(
            clients[rank] / here / "model", device="cpu", process_group=dist.group.WORLD
        )
        count = 0
        for name, found in stream:
            assert is_right(name, found)
            count += 1
        assert count == TENSORS
        dist.destroy_process_group()

    before = [read_counts(folder)[0] for folder in clients]
    ranks = [multiprocessing.get_context("fork").Process(target=load, args=(rank,)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
        assert each.exitcode == 0
    read_bytes = [read_counts(folder)[0] - before for folder, before in zip(clients, before, strict=True)]
    assert size_bytes <= sum(read_bytes) <= 1.1 * size_bytes, read_bytes
    assert min(read_bytes) > 0.3 * size_bytes, read_bytes


def reopened_after_a_rewrite(mount, here):
    """The old header is not reused, although size and time are unchanged."""
    from pagestream.safetensors import safe_open

    def one_name(name):
        header = json.dumps({name: {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
        return len(header).to_bytes(8, "little") + header + name.encode() * 8

    served = mount.served / here / "one.safetensors"
    served.write_bytes(one_name("a"))
    for turn in range(3):
        with safe_open(mount.folder / here / served.name, "np") as file:
            assert file.keys() == ["a"]
        time.sleep(0 if turn else 3.2)
    before = served.stat()
    with served.open("r+b") as file:
        file.write(one_name("b"))
    os.utime(served, ns=(before.st_atime_ns, before.st_mtime_ns))
    with safe_open(mount.folder / here / served.name, "np") as file:
        assert file.keys() == ["b"]
        assert file.get_tensor("b").tobytes() == b"b" * 8


# --- files that change ----------------------------------------------------------------------------


@dataclass
class Use:
    """A checkpoint of two files in use. The check changes its second file."""

    word: str
    second: Path
    seen: Path
    source: Any = None
    found: dict[str, np.ndarray] = field(default_factory=dict)


def in_use(mount, here, words):
    uses = []
    for word in words:
        (mount.served / here / word).mkdir()
        _, second = shards(mount.served / here / word / "model")
        uses.append(Use(word, second, mount.folder / here / word / "model" / second.name))
    return uses


def change_all(uses, how):
    for use in uses:
        change(how, use.second)
    time.sleep(ATTRIBUTES_HOLD_SECONDS + 0.2)
    drop_caches()


def changed_under_a_stream(mount, here, how):
    """A stream yields the original bytes and then raises an error that names the file."""
    from pagestream import open_checkpoint
    from pagestream.errors import FileChangedError, MappedReadError

    uses = in_use(mount, here, ALL_STRATEGIES)
    drop_caches()
    for use in uses:
        weights = open_checkpoint(use.seen.parent)
        use.source = (weights, weights.stream(strategy=use.word, memory_bytes=2 * MIB))
        name, array = next(use.source[1])
        use.found[name] = array.copy()
    change_all(uses, how)
    for use in uses:
        weights, stream = use.source
        error = None
        try:
            for name, array in stream:
                use.found[name] = array.copy()
            # While open, a replaced or deleted file keeps its content. A view shows the present content.
            if how in ("replaced", "deleted") or use.word in VIEWS:
                weights.check()
        except (FileChangedError, MappedReadError) as raised:
            error = raised
        assert error is not None, f"{use.word}: no error"
        assert use.second.name in str(error), error
        # Views show the changed file, and `check` reports the change. Reads return the original bytes.
        wrong = [name for name, array in use.found.items() if not is_right(name, array)]
        assert use.word in VIEWS or not wrong, f"{use.word}: wrong bytes in {wrong}, then {error!r}"


def whole(file, name):
    return file.get_tensor(name)


def slices(file, name):
    return file.get_slice(name)[...]


def changed_under_views(mount, here, how, get):
    """Arrays of a changed file raise an exception, and the process survives."""
    from pagestream.errors import FileChangedError, MappedReadError
    from pagestream.safetensors import safe_open

    uses = in_use(mount, here, [*(f"{mode}-alone" for mode in MODES[1:]), "shared-ahead"])
    for use in uses:
        mode, lead = use.word.split("-")
        # Every touched page comes from the server, unless it was read ahead.
        use.source = safe_open(use.seen, "np", mmap_mode=mode, ahead=None if lead == "ahead" else False)
        for name in use.source.keys()[: 2 if lead == "ahead" else 1]:
            assert is_right(name, get(use.source, name))
    change_all(uses, how)
    for use in uses:
        file, error = use.source, None
        names = file.keys()
        try:
            for name in names:
                get(file, name).sum()
            time.sleep(0.01)  # the error of a fault is raised between two instructions of the main thread
            # Truncated pages raise even without a check, and never read as zeros.
            if how != "cut":
                file.check()
        except (FileChangedError, MappedReadError) as raised:
            error = raised
        assert error is not None, f"{use.word}: no error"
        assert use.second.name in str(error), error
        # A new open sees the present file, or raises.
        try:
            with safe_open(use.seen, "np", mmap_mode=use.word.split("-")[0]) as again:
                new = again.get_tensor(names[-1]).copy()
        except (OSError, ValueError):
            assert how in ("cut", "deleted"), traceback.format_exc()
        else:
            assert how in ("replaced", "rewritten")
            assert np.array_equal(new, tensor(number_of(names[-1]), 1))


# --- a server that goes away ----------------------------------------------------------------------


def soft_mount_without_a_server(mount, here):
    """Reads and streams raise errors with cause and path. Once the server is back, they work again."""
    from pagestream import MappedFile, open_checkpoint
    from pagestream.errors import MappedReadError

    _, second = shards(mount.served / here / "model")
    path = mount.folder / here / "model" / second.name
    with MappedFile(path, mode="shared") as mapped, MappedFile(path, mode="read") as read:
        weights = open_checkpoint(mount.folder / here / "model")
        drop_caches()
        with server_stopped():
            for file in (mapped, read):
                error = error_of(lambda file=file: file.read(2 * MIB, MIB))
                assert isinstance(error, MappedReadError)
                assert error.errno in (errno.EIO, errno.ETIMEDOUT), error
                assert error.filename == str(path)
            error = error_of(lambda: list(weights.stream(strategy="pread")))
            assert error.errno in (errno.EIO, errno.ETIMEDOUT), error
        expected = second.read_bytes()[2 * MIB : 3 * MIB]
        for file in (mapped, read):
            assert retried(lambda file=file: file.read(2 * MIB, MIB)) == expected
        found = retried(lambda: dict(weights.stream(strategy="pread")))
        assert all(is_right(name, array) for name, array in found.items())


def views_without_a_server(mount, here):
    """Touching an array raises in the main thread, and a new open reads the right bytes."""
    from pagestream.errors import MappedReadError
    from pagestream.safetensors import safe_open

    _, second = shards(mount.served / here / "model")
    path = mount.folder / here / "model" / second.name
    files = [safe_open(path, "np", mmap_mode=mode, ahead=False) for mode in ("shared", "private")]
    names = files[0].keys()
    arrays = [file.get_tensor(names[-1]) for file in files]
    drop_caches()
    with server_stopped():
        for array in arrays:
            error = None
            try:
                # Touches only one page, because every 64 KiB that are touched wait for the server again.
                int(array[MIB // 2])
                time.sleep(0.01)  # the error is raised between two instructions of the main thread
            except MappedReadError as raised:
                error = raised
            assert error is not None, "no error"
            assert second.name in str(error), error
    with retried(lambda: safe_open(path, "np")) as again:
        assert all(is_right(name, retried(lambda name=name: again.get_tensor(name))) for name in names)


def error_of(read):
    """Returns the OSError that a read raises."""
    try:
        read()
    except OSError as error:
        return error
    message = "no error"
    raise AssertionError(message)


def retried(read):
    """A restarted server does not answer for a while, so that earlier clients can reclaim their state."""
    deadline = time.monotonic() + STEP_SECONDS
    while True:
        try:
            return read()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def hard_mount_waits(mount, here):
    """Reads and streams wait for the server and then continue with the right bytes."""
    from pagestream import MappedFile, open_checkpoint

    assert mount.hard is not None
    _, second = shards(mount.served / here / "model")
    path = mount.hard / here / "model" / second.name
    weights = open_checkpoint(mount.hard / here / "model")
    with MappedFile(path, mode="shared") as mapped, MappedFile(path, mode="read") as read:
        drop_caches()
        expected, found = second.read_bytes(), {}

        def use():
            for file in (mapped, read):
                found[file.mode] = file.read(2 * MIB, MIB)
            found["stream"] = dict(weights.stream(strategy="pread"))

        thread = threading.Thread(target=use)
        with server_stopped():
            thread.start()
            thread.join(3)
            assert thread.is_alive()
            assert not found
        thread.join(STEP_SECONDS)
        assert not thread.is_alive()
    assert found["shared"] == found["read"] == expected[2 * MIB : 3 * MIB]
    assert all(is_right(name, array) for name, array in found["stream"].items())


def with_change(check, how, *ways):
    return lambda mount, here: check(mount, here, how, *ways)


CHECKS = {
    "modes and facts": modes_and_facts,
    "cold pages are told": cold_pages_are_told,
    "tokens": tokens,
    "holes": holes,
    "weights bit for bit": weights_bit_for_bit,
    "read ahead": read_ahead,
    "ranks share the reads": ranks_share_the_reads,
    "reopened after a rewrite": reopened_after_a_rewrite,
    **{f"{how} under a stream": with_change(changed_under_a_stream, how) for how in CHANGES},
    **{f"{how} under views": with_change(changed_under_views, how, whole) for how in CHANGES},
    # Only truncated pages could be mistaken for zeros.
    "cut under slices": with_change(changed_under_views, "cut", slices),
}
# These run at the same time, because a restarted server is slow for a while.
OUTAGE_CHECKS = {
    "soft mount without a server": soft_mount_without_a_server,
    "views without a server": views_without_a_server,
    "hard mount waits": hard_mount_waits,
}


def mounts_of(name):
    """Returns the mounts on which a check runs."""
    # The ranks use all mounts.
    needs = {
        "hard mount waits": lambda word: MOUNTS[word].hard,
        "ranks share the reads": lambda word: word == "v3",
    }
    return [word for word in MOUNTS if needs.get(name, bool)(word)]


OUTAGES = [(name, word) for name in OUTAGE_CHECKS for word in mounts_of(name)]
# Starts the checks, and the process that stops the server.
FORK = multiprocessing.get_context("fork")
OUTAGE = FORK.Barrier(len(OUTAGES) + 1)


def outcome(check, mount, here):
    """Runs a check in its own process. Returns the traceback of its failure, or None."""
    (mount.served / here).mkdir()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        # A check that hangs prints its stacks.
        faulthandler.dump_traceback_later(CHECK_SECONDS, exit=True, file=writing)
        failed = ""
        try:
            check(mount, here)
        except BaseException:  # noqa: BLE001 - any exception is a result
            failed = traceback.format_exc()
        os.write(writing, failed.encode()[-30_000:])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        failed = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    shutil.rmtree(mount.served / here, ignore_errors=True)
    if status:
        return f"the process died: {os.waitstatus_to_exitcode(status)}\n{failed}"
    return failed or None


def main():
    """Runs all checks on all mounts. Prints a line of JSON for each."""
    import pagestream  # noqa: F401 - before the forks, because the import takes time

    for salt in (0, 1):
        content(range(TENSORS), salt)

    with Path("/mnt/out/results").open("w") as results:

        def note(check, mount, here):
            begun = time.monotonic()
            failed = outcome((CHECKS | OUTAGE_CHECKS)[check], MOUNTS[mount], Path(here))
            seconds = time.monotonic() - begun
            found = {"check": check, "mount": mount, "failed": failed, "seconds": seconds}
            print(json.dumps(found), file=results, flush=True)

        for number, name in enumerate(CHECKS):
            for word in mounts_of(name):
                note(name, word, f"{number}-{word}")
        # This runs in a separate process. A check forked while this process holds the barrier's lock would
        # count as the holder, and would never release it.
        server = FORK.Process(target=outage)
        server.start()
        with ThreadPoolExecutor(len(OUTAGES)) as pool:
            for number, (name, word) in enumerate(OUTAGES):
                pool.submit(note, name, word, f"outage-{number}")
        server.join()
        assert server.exitcode == 0


if __name__ == "__main__":
    main()
