"""``pagestream verify``: whether files are what they should be."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from pagestream._common.amounts import count
from pagestream.cli import _output
from pagestream.cli._arguments import AsJson, Paths
from pagestream.cli._progress import bar_of_bytes
from pagestream.cli._target import opened
from pagestream.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Verdict:
    """What was found at a path.

    Attributes:
        path: The path.
        kind: ``"safetensors"`` or ``"tokens"``; None if that cannot be told.
        files: How many files.
        checked: How many of them were compared with checksums, byte by byte.
        bad: What is wrong.
    """

    path: str
    kind: str | None = None
    files: int = 0
    checked: int = 0
    bad: list[str] = field(default_factory=list)


def verify(
    paths: Paths,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that read and hash.")] = None,
    as_json: AsJson = False,
) -> None:
    """Validate headers, indices and sizes, and compare bytes with checksums where there are any.

    Checksums are those of `write_checksums`, and the SHA-256 in the names of the Hugging Face cache. Paths
    are verified side by side.

    Example: pagestream verify ~/.cache/huggingface/hub/models--gpt2/snapshots/*
    """
    for path in paths:
        os.stat(path)  # what is missing is told before hours of work
    verdicts = _verdicts(paths, threads)
    if as_json:
        _output.print_json(verdicts)
    else:
        _print(verdicts)
    if any(verdict.bad for verdict in verdicts):
        raise typer.Exit(_output.BAD)


class _Stopped(Exception):  # noqa: N818 - it is no error
    """Ends the work at a path."""


def _verdicts(paths: list[str], threads: int | None) -> list[Verdict]:
    """Verifies paths side by side, and shows how far that is."""
    most = threads or len(os.sched_getaffinity(0))
    workers = min(len(paths), most)
    stops = threading.Event()
    # Bytes done, and bytes in all, of each path.
    amounts = [(0, 0)] * len(paths)
    with bar_of_bytes() as bar, ThreadPoolExecutor(workers) as pool:
        task = bar.add_task("verify", total=None)

        def verdict(number: int) -> Verdict:
            def report(done_bytes: int, total_bytes: int) -> None:
                if stops.is_set():
                    raise _Stopped
                amounts[number] = (done_bytes, total_bytes)
                done, total = map(sum, zip(*amounts, strict=True))
                bar.update(task, completed=done, total=total)

            return _verdict(paths[number], threads and max(1, threads // workers), report)

        futures = [pool.submit(verdict, number) for number in range(len(paths))]
        try:
            for future in as_completed(futures):
                future.result()  # raises the first error, whichever path it is of
        finally:
            stops.set()
        return [future.result() for future in futures]


def _verdict(path: str, threads: int | None, report: Callable[[int, int], None]) -> Verdict:
    found = Verdict(path)
    try:
        with opened(path, ahead=False) as files:
            if isinstance(files, Checkpoint):
                found.kind, found.files = "safetensors", len(files.files)
                verified = files.verify(threads=threads, progress=report)
                found.checked = len(verified.checked)
                found.bad = list(map(str, verified.bad))
            else:
                found.kind, found.files = "tokens", len(files.shards)
    except _output.BAD_FILE as error:
        found.bad = [str(error)]
    return found


def _print(verdicts: list[Verdict]) -> None:
    console = _output.console()
    for verdict in verdicts:
        if verdict.bad:
            console.print(f"{verdict.path}: bad", style="red")
            for line in verdict.bad:
                console.print(f"  {line}")
            continue
        compared = (
            "headers and sizes are right; no checksums to compare bytes with"
            if not verdict.checked
            else f"every byte of {count(verdict.checked, 'file')} of {verdict.files} has its checksum"
        )
        console.print(
            f"{verdict.path}: good. {count(verdict.files, 'file')} of {verdict.kind}: {compared}",
            markup=False,
        )
