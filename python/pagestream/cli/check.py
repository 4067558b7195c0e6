"""``pagestream check``: measures how fast a mount delivers files, and suggests faster mount options."""

from __future__ import annotations

import errno
import os
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from pagestream import _native
from pagestream._common.amounts import count, size
from pagestream.cli import _codes, _console, _output
from pagestream.cli._arguments import AsJson
from pagestream.cli._folder import folder_warnings
from pagestream.cli._target import files_of, has_weights, open_weights, problem_of
from pagestream.files.mapped_file import FileSystem, MappedFile

# The default size limit of one FUSE request.
_REQUEST_BYTES = 128 << 10
_SIDE_BY_SIDE = 16
# Each half of the trial (one read at a time, then side by side) stops at either limit.
_MOST_READS, _TRIAL_SECONDS = 256, 1.0
_MODES = ("shared", "private", "read")
# The residency of a larger folder is estimated from a sample of this size.
_SAMPLED_FILES = 64
_WIDE_READ_AHEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class Trial:
    """The speed of reads at random offsets, one at a time and side by side.

    Attributes:
        request_bytes: Size of each read.
        alone_seconds: Mean time per read, one at a time.
        alone_rate: Bytes per second, one at a time.
        together: Number of reads side by side.
        together_rate: Bytes per second, side by side.
    """

    request_bytes: int
    alone_seconds: float
    alone_rate: float
    together: int
    together_rate: float


def check(
    path: Annotated[str, typer.Argument(help="A file, a folder, an index, or a Hugging Face id.")],
    as_json: AsJson = False,
) -> None:
    """Time the storage, show how pagestream reads from it, and suggest mount options. Takes a few seconds.

    Example: pagestream check /mnt/models/llama
    """
    files, _ = files_of([path])
    largest = max(files, key=os.path.getsize)
    with MappedFile(largest) as file:
        system, mode, reason = file.file_system, file.mode, file.reason
    # Look for holes before reading bytes, because preallocated space counts as data once it is read.
    warnings, decision, problem = _decision(path)
    facts: dict[str, Any] = {
        "path": path,
        "files": len(files),
        "nbytes": sum(map(os.path.getsize, files)),
        "file_system": system,
        "modes": {word: _answer(largest, word) for word in _MODES},
        "mode": mode,
        "reason": reason,
        "cached": _cached(files),
        "trial": _trial(largest),
        "stream": decision,
        "advice": _advice(system, mode, reason, largest),
        "warnings": warnings,
        "problem": problem,
    }
    if as_json:
        _output.print_json(facts)
    else:
        _print(facts)
    if problem:
        raise typer.Exit(_codes.BAD)


def _print(facts: dict[str, Any]) -> None:
    console = _console.console()
    head = f"{facts['path']}: "
    _console.print_text(
        console, f"{count(facts['files'], 'file')}, {size(facts['nbytes'])}", head=head, indent=2
    )
    rows = _rows(facts)
    width = max(map(len, rows))
    for name, fact in rows.items():
        _console.print_text(console, fact, head=f"{name:{width}}  ")
    for line in facts["advice"]:
        _console.print_text(console, line, head="* ", style=_console.ACTION)
    _console.print_warnings(console, facts["warnings"])
    _console.print_problem(console, facts["problem"])


def _rows(facts: dict[str, Any]) -> dict[str, str]:
    system: FileSystem = facts["file_system"]
    window = system.read_ahead_bytes
    rows = {
        "mount": f"{system.mount_point} ({system.type}, {system.source})",
        # A line may end after each option.
        "options": system.options.replace(",", ", "),
        "read-ahead": "unknown" if window is None else size(window),
    }
    for word, answer in facts["modes"].items():
        rows[f"mode {word}"] = f"{answer} <- in use" if word == facts["mode"] else answer
    rows["cached"] = f"{_output.percent(facts['cached'])} of the pages"
    trial: Trial | None = facts["trial"]
    if trial is None:
        rows["trial"] = "skipped: the largest file is too small, or too much of it is in the page cache"
    else:
        rows["one read"] = (
            f"{size(trial.request_bytes)} in {trial.alone_seconds * 1e3:.2f} ms, "
            f"{size(trial.alone_rate)} a second"
        )
        rows[f"{trial.together} at a time"] = (
            f"{size(trial.together_rate)} a second, "
            f"{trial.together_rate / trial.alone_rate:.1f} times as much"
        )
    if facts["stream"]:
        rows["streams"] = facts["stream"]
    return rows


def _answer(path: str, mode: str) -> str:
    """Returns ``"works"``, or the error from opening the file in a mode: ``"ENODEV: No such device"``."""
    try:
        with MappedFile(path, mode=mode):  # type: ignore[arg-type]  # one of the words
            return "works"
    except OSError as error:
        told = error.strerror or str(error)
        return told if error.errno is None else f"{errno.errorcode[error.errno]}: {told}"


def _cached(files: list[str]) -> float:
    """Returns the cached fraction of the files' bytes, measured on a random sample of a large folder."""
    drawn = random.Random(0).sample(files, min(len(files), _SAMPLED_FILES))  # noqa: S311 - a sample
    cached_bytes = total_bytes = 0.0
    for path in drawn:
        with MappedFile(path) as file:
            total_bytes += file.size
            cached_bytes += file.residency().fraction * file.size if file.size else 0
    return cached_bytes / total_bytes if total_bytes else 1.0


def _trial(path: str) -> Trial | None:
    """Times reads outside the page cache; None if too few blocks of the file are uncached."""
    with MappedFile(path) as mapped, MappedFile(path, mode="read") as file:
        places = range(file.size // _REQUEST_BYTES)
        drawn = random.Random().sample(places, min(len(places), 4 * _MOST_READS))  # noqa: S311 - a sample
        cold = [
            place * _REQUEST_BYTES
            for place in drawn
            if not mapped.residency(place * _REQUEST_BYTES, _REQUEST_BYTES).fraction > 0
        ]
        if len(cold) < 2 * _SIDE_BY_SIDE:
            return None
        half = len(cold) // 2
        mapped.advise("random")
        file.advise("random")
        alone_seconds = _rate(file, cold[:half][:_MOST_READS], 1)
        together_seconds = _rate(file, cold[half:][:_MOST_READS], _SIDE_BY_SIDE)
    return Trial(
        request_bytes=_REQUEST_BYTES,
        alone_seconds=alone_seconds,
        alone_rate=_REQUEST_BYTES / alone_seconds,
        together=_SIDE_BY_SIDE,
        together_rate=_REQUEST_BYTES / together_seconds,
    )


def _rate(file: MappedFile, offsets: list[int], threads: int) -> float:
    """Returns the elapsed seconds per read, where `threads` threads share the offsets."""
    begun = time.perf_counter()
    done = [0] * threads

    def read(number: int) -> None:
        for offset in offsets[number::threads]:
            if time.perf_counter() - begun > _TRIAL_SECONDS:
                return
            file.read(offset, _REQUEST_BYTES)
            done[number] += 1

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, range(threads)))
    return (time.perf_counter() - begun) / max(1, sum(done))


def _decision(path: str) -> tuple[list[str], str | None, str | None]:
    """Returns a checkpoint's warnings, a stream's strategy with the reason, and the checkpoint's problem.

    For token files it returns no warning, and None twice.
    """
    if not has_weights(path):
        return [], None, None
    with open_weights(path, ahead=False, partly=True) as weights:
        warnings = [*weights.warnings, *folder_warnings(path, of_weights=True)]
        return warnings, weights.explain().splitlines()[-1], problem_of(weights)


def _advice(system: FileSystem, mode: str, reason: str | None, path: str) -> list[str]:
    """Returns advice for a network or FUSE mount, such as a larger ``rsize``; see docs/slow-mounts.md."""
    is_fuse = system.type.startswith("fuse")
    if not system.is_network and not is_fuse:
        return []
    found = []
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    window = system.read_ahead_bytes
    if mode == "shared" and window is not None and window < _WIDE_READ_AHEAD_BYTES:
        found.append(
            f"the kernel reads {size(window)} ahead here; as root: "
            f"echo 1024 > /sys/class/bdi/{number}/read_ahead_kb"
        )
    # Without a reason, the caller chose the mode.
    if mode != "shared" and reason:
        found.append(
            "nothing stays in the page cache (direct_io): each process and each later load reads from the "
            "store again; enable the mount's own cache, or turn direct_io off"
        )
    if system.type.startswith("nfs"):
        if "nconnect=" not in system.options:
            found.append("mount with nconnect=8: several TCP connections carry more than one")
        rsize = re.search(r"rsize=(\d+)", system.options)
        if rsize and int(rsize[1]) < _WIDE_READ_AHEAD_BYTES:
            found.append(f"mount with rsize=1048576: requests are limited to {size(int(rsize[1]))} now")
    if is_fuse and mode == "shared" and not _native.is_sharing():
        found.append(
            "each opening of a file drops its cached pages, unless the daemon keeps them (kernel_cache, "
            "auto_cache): if several processes load one checkpoint, set PAGESTREAM_SHARE=on, and they "
            "share open files"
        )
    if is_fuse and mode == "shared":
        found.append(
            "the kernel sends a FUSE daemon at most 12 background requests at a time, unless the daemon asks "
            f"for more; as root: echo 64 > /sys/fs/fuse/connections/{os.minor(device)}/max_background"
        )
    return found
