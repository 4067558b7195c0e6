"""The cases of the field: the files, their places, and the events during a read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pagestream.cli import _contests
from pagestream.cli.field import loaders
from pagestream.files.mapped_file import MappedFile
from pagestream.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

_GIGABYTE = 1e9
# Steps per turn: batches of cold files, and batches of cached files.
_COLD_STEPS, _WARM_STEPS, _ALL = 32, 400, 1 << 30
_MOST_SECONDS = 20.0
# A loader that is not done by then is killed.
_PATIENCE_SECONDS = 120.0
# The memory that torch itself needs, and the memory that a loader may use in addition.
_CAP_BYTES = 640 << 20
_CGROUPS = "/sys/fs/cgroup"
# Characters of an error shown in the tables.
_TOLD = 40
# A figure with at least this share of ours is no better.
_SAME = 0.995


@dataclass(frozen=True)
class Scale:
    """The amount of work: rounds, and bytes per file."""

    rounds: int = 3
    nbytes: int = 1 << 30


@dataclass
class Finding:
    """The result of a loader in a case; medians over the rounds.

    Attributes:
        case: The case.
        loader: The loader.
        outcome: ``"right"``, ``"wrong bytes"``, ``"killed by SIGBUS"`` or another signal, ``"no end"``, an
            error; or ``"stopped after 20 s"`` for a loader that was too slow. Its figures cover the bytes
            that it delivered.
        is_ours: Whether the loader is pagestream's.
        rates: Bytes per second, for each round.
        p50_seconds: Median time per batch or tensor.
        p99_seconds: 99th percentile of this time.
        read_per_byte: Bytes from the disk, or from the daemon of a mount, per used byte.
        cpu_seconds_per_gb: CPU seconds per gigabyte, including worker processes.
        anonymous_bytes: Growth of anonymous memory.
    """

    case: str
    loader: str
    outcome: str
    is_ours: bool
    rates: list[float] = field(default_factory=list)
    p50_seconds: float = 0.0
    p99_seconds: float = 0.0
    read_per_byte: float = 0.0
    cpu_seconds_per_gb: float = 0.0
    anonymous_bytes: int = 0

    @property
    def rate(self) -> float:
        """The median of the rates, or 0 if the loader did not end correctly."""
        return statistics.median(self.rates) if self.rates else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Returns all values."""
        return asdict(self) | {"rate": self.rate}


@dataclass(frozen=True)
class _Case:
    """Files of one kind, in one place.

    Attributes:
        title: The title.
        kind: ``"tokens"`` or ``"weights"``.
        path: The file.
        is_cold: Whether the file is evicted before each turn.
        daemon: The process that serves the mount, whose reads are counted.
        cuts: Whether the file is truncated to half its size after the first step.
        group: A control group with a limit on memory.
        rounds: The number of turns of each loader.
    """

    title: str
    kind: str
    path: str
    is_cold: bool = True
    daemon: int | None = None
    cuts: bool = False
    group: str | None = None
    rounds: int = 1


def measured(folder: Path, scale: Scale, told: Callable[[str], None]) -> tuple[list[Finding], list[str]]:
    """Measures all loaders in all cases.

    Args:
        folder: An empty folder on the disk or mount to measure.
        scale: The amount of work.
        told: Called with a description of the current work.

    Returns:
        The findings, and remarks about skipped measurements.
    """
    remarks = [
        f"{name} is not installed"
        for kind in loaders.KINDS.values()
        for name, loader in kind.items()
        if not loader.is_installed
    ]
    told("writing files")
    paths = _written(folder, scale, remarks)
    sums = _sums(paths["weights"]) if "weights" in paths else {}
    findings: list[Finding] = []
    with contextlib.closing(_cases(folder, paths, scale, remarks)) as cases:
        for case in cases:
            told(case.title)
            findings += _of_case(case, sums)
    return findings, remarks


def _written(folder: Path, scale: Scale, remarks: list[str]) -> dict[str, str]:
    """Writes the files, and returns their paths by kind."""
    tokens, weights = str(folder / "tokens.bin"), str(folder / "model.safetensors")
    _contests.write_token_file(tokens, scale.nbytes)
    litdata = loaders.KINDS["tokens"].get("LitData")
    if litdata is not None and litdata.is_installed:
        program = "import sys; from pagestream.cli.field.loaders import *; convert_for_litdata(sys.argv[1])"
        command = [sys.executable, "-c", program, tokens]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            remarks.append(f"LitData could not convert the token file: {reason}")
    try:
        _contests.write_checkpoint(weights, scale.nbytes)
    except ImportError as error:
        remarks.append(f"weights were not measured: {error}")
        return {"tokens": tokens}
    return {"tokens": tokens, "weights": weights}


def _cases(folder: Path, paths: dict[str, str], scale: Scale, remarks: list[str]) -> Generator[_Case]:
    """Yields the cases one by one. A mount and a control group exist only during their cases."""
    if _contests.can_be_cold(paths["tokens"]):
        for kind, path in paths.items():
            yield _Case(f"{kind}, cold", kind, path, rounds=scale.rounds)
    else:
        remarks.append(f"cold files were not measured: what {folder} holds stays in memory")
    for kind, path in paths.items():
        yield _Case(f"{kind}, in the page cache", kind, path, is_cold=False, rounds=scale.rounds)
    with contextlib.ExitStack() as stack:
        mounted = _entered(stack, _fuse(folder), "a FUSE mount was not measured", remarks)
        for kind, path in paths.items() if mounted else ():
            there, title = os.path.join(mounted[0], os.path.basename(path)), f"{kind}, FUSE with direct_io"
            yield _Case(title, kind, there, is_cold=False, daemon=mounted[1])
    with contextlib.ExitStack() as stack:
        group = _entered(stack, _memory_limit(_CAP_BYTES), "a cap on memory was not measured", remarks)
        for kind, path in paths.items() if group else ():
            yield _Case(f"{kind}, in {_CAP_BYTES >> 20} MiB of memory", kind, path, group=group)
    for kind, path in paths.items():
        yield _Case(f"{kind}, cut while they are read", kind, path, cuts=True)


def _entered(
    stack: contextlib.ExitStack, manager: AbstractContextManager[Any], refusal: str, remarks: list[str]
) -> Any:  # noqa: ANN401 - the manager's value, or None
    try:
        return stack.enter_context(manager)
    except OSError as error:
        remarks.append(f"{refusal}: {error}")
        return None


def losses(findings: list[Finding]) -> list[str]:
    """Returns a line for each case and figure where a rival is better than all of our loaders."""
    lines = []
    for case in dict.fromkeys(each.case for each in findings):
        right = [each for each in findings if each.case == case and each.outcome == "right"]
        ours, others = [each for each in right if each.is_ours], [each for each in right if not each.is_ours]
        if not ours:
            lines += [f"{case}: {each.loader} ended right, pagestream did not" for each in others]
            continue
        for other in others:
            best = max(each.rate for each in ours)
            if other.rate > best:
                lines.append(f"{case}: {other.loader} is {other.rate / best:.2f} times as fast")
            figures = {
                "99th percentile": "p99_seconds",
                "bytes read": "read_per_byte",
                "CPU time": "cpu_seconds_per_gb",
                "anonymous memory": "anonymous_bytes",
            }
            for what, name in figures.items():
                least, theirs = min(getattr(each, name) for each in ours), getattr(other, name)
                if theirs < _SAME * least:
                    lines.append(f"{case}: {other.loader} has {theirs / least:.2f} of our {what}")
    return lines


def _sums(path: str) -> dict[str, int]:
    with open_checkpoint(path, ahead=False) as weights:
        return {name: _contests.used(array) for name, array in weights.items()}


def _of_case(case: _Case, sums: dict[str, int]) -> list[Finding]:
    """Lets all loaders take turns, in a changing order."""
    kind = loaders.KINDS[case.kind]
    names = [
        name
        for name, loader in kind.items()
        if loader.is_installed and (loader.reads_the_file or not (case.cuts or case.daemon))
    ]
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(case.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            turns[name].append(_turn(case, name, number, sums))
    return [_finding(case, name, kind[name].is_ours, of_loader) for name, of_loader in turns.items()]


def _finding(case: _Case, name: str, is_ours: bool, turns: list[dict[str, Any]]) -> Finding:
    outcomes = list(dict.fromkeys(turn["outcome"] for turn in turns))
    timed = [turn for turn in turns if turn["outcome"] in ("right", _late())]
    found = Finding(case.title, name, "; ".join(outcomes), is_ours)
    if timed:
        found.rates = [turn["nbytes"] / turn["seconds"] for turn in timed]
        found.p50_seconds, found.p99_seconds = (
            statistics.median(turn["latencies"][place] for turn in timed) for place in (0, 1)
        )
        found.read_per_byte = statistics.median(turn["read_bytes"] / turn["nbytes"] for turn in timed)
        found.cpu_seconds_per_gb = statistics.median(
            turn["cpu_seconds"] / turn["nbytes"] * _GIGABYTE for turn in timed
        )
        found.anonymous_bytes = int(statistics.median(turn["anonymous_bytes"] for turn in timed))
    return found


def _turn(case: _Case, name: str, seed: int, sums: dict[str, int]) -> dict[str, Any]:
    steps = _ALL if case.kind == "weights" else _COLD_STEPS if case.is_cold else _WARM_STEPS
    path = case.path
    if case.cuts:
        # Use a copy, because the file itself is still needed.
        path = shutil.copy(case.path, f"{case.path}.cut{os.path.splitext(case.path)[1]}")
        os.sync()
    asked = {"kind": case.kind, "loader": name, "path": path, "seed": seed, "waits": case.cuts}
    asked |= {"most_steps": _ALL if case.cuts else steps, "most_seconds": _MOST_SECONDS}
    command = [sys.executable, "-m", "pagestream.cli.field.worker", json.dumps(asked)]
    if case.group is not None:
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', f"{case.group}/cgroup.procs", *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as worker:
        try:
            return _conversation(case, path, worker, sums)
        finally:
            # Kill its worker processes, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            if case.cuts:
                os.unlink(path)


def _conversation(
    case: _Case, path: str, worker: subprocess.Popen[str], sums: dict[str, int]
) -> dict[str, Any]:
    """Tells the worker when to begin and when to continue, and judges its results."""
    assert worker.stdin is not None  # noqa: S101 - for type checkers
    assert worker.stdout is not None  # noqa: S101
    worker.stdout.readline()
    if case.is_cold:
        for each in _files(path):
            with MappedFile(each) as file:
                file.evict()
    before = _served(case.daemon)
    line = _answer(worker, "\n")
    if line == "first\n":
        os.truncate(path, os.path.getsize(path) // 2)
        line = _answer(worker, "\n")
    if not line.startswith("{"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(1)
        code = worker.returncode
        outcome = (
            "no end" if code is None else f"killed by {signal.Signals(-code).name}" if code < 0 else "failed"
        )
        return {"outcome": outcome}
    found: dict[str, Any] = json.loads(line)
    if case.daemon is not None:
        found["read_bytes"] = _served(case.daemon) - before
    is_whole = case.kind == "tokens" or len(found["sums"]) == len(sums)
    is_right = found["is_right"] and all(sums[tensor] == value for tensor, value in found["sums"].items())
    if not is_right:
        found["outcome"] = "wrong bytes"
    elif found["error"] is not None:
        told, *_ = found["error"].splitlines()
        found["outcome"] = f"raised {textwrap.shorten(told, _TOLD, placeholder='…')}"
    elif is_whole:
        found["outcome"] = "right"
    else:
        found["outcome"] = _late() if found["is_late"] else "tensors are missing"
    return found


def _late() -> str:
    """Returns the outcome of a loader that has not delivered all tensors in time."""
    return f"stopped after {_MOST_SECONDS:.0f} s"


def _answer(worker: subprocess.Popen[str], line: str) -> str:
    """Sends a line, and returns the answer, or an empty string if none arrives in time."""
    import select

    assert worker.stdin is not None  # noqa: S101
    assert worker.stdout is not None  # noqa: S101
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.write(line)
        worker.stdin.flush()
    ready, _, _ = select.select([worker.stdout], [], [], _PATIENCE_SECONDS)
    return worker.stdout.readline() if ready else ""


def _files(path: str) -> list[str]:
    """Returns a file, and the files of LitData's copy of it."""
    copy = path + loaders.LITDATA_SUFFIX
    inside = [os.path.join(copy, name) for name in os.listdir(copy)] if os.path.isdir(copy) else []
    return [path, *(each for each in inside if os.path.isfile(each))]


def _served(daemon: int | None) -> int:
    """Returns the number of bytes that the daemon of a mount has read."""
    if daemon is None:
        return 0
    with open(f"/proc/{daemon}/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("rchar"))


@contextlib.contextmanager
def _fuse(folder: Path) -> Iterator[tuple[str, int]]:
    """Shows a folder on a FUSE mount without a page cache, with bindfs. Yields the mount and the daemon.

    Raises:
        OSError: bindfs is not installed, or may not mount.
    """
    program, mount = shutil.which("bindfs"), folder.with_name(f"{folder.name}-fuse")
    if program is None:
        raise FileNotFoundError(2, "bindfs is not installed")
    mount.mkdir()
    command = [program, "-f", "--multithreaded", "-o", "direct_io,ro", str(folder), str(mount)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        try:
            while not os.path.ismount(mount):
                if daemon.poll() is not None:
                    raise OSError(daemon.returncode, "bindfs does not mount here")
                time.sleep(0.01)
            yield str(mount), daemon.pid
        finally:
            unmount = shutil.which("fusermount3") or shutil.which("fusermount") or "fusermount3"
            subprocess.run([unmount, "-u", "-z", str(mount)], check=False, capture_output=True)
            daemon.terminate()
            daemon.wait()
            mount.rmdir()


@contextlib.contextmanager
def _memory_limit(limit_bytes: int) -> Iterator[str]:
    """Creates a control group with a limit on memory, and yields its folder.

    Raises:
        OSError: This user may not create it.
    """
    name = f"pagestream-bench-{os.getpid()}"
    is_old = os.path.exists(f"{_CGROUPS}/memory/memory.limit_in_bytes")
    group = f"{_CGROUPS}/memory/{name}" if is_old else f"{_CGROUPS}/{name}"
    os.mkdir(group)
    try:
        with open(f"{group}/memory.limit_in_bytes" if is_old else f"{group}/memory.max", "w") as file:
            file.write(str(limit_bytes))
        yield group
    finally:
        # A process that was just killed may still be in the group.
        for _ in range(100):
            with contextlib.suppress(OSError):
                os.rmdir(group)
                break
            time.sleep(0.05)
