"""``pagestream verify``: compares files with their headers, indices and checksums."""

from __future__ import annotations

import errno
import glob
import os
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from pagestream._common.amounts import count
from pagestream.cli import _codes, _console, _output
from pagestream.cli._arguments import AsJson, Dtype, Paths, checked_dtype
from pagestream.cli._folder import folder_warnings
from pagestream.cli._ids import beyond
from pagestream.cli._progress import bar_of_bytes
from pagestream.cli._target import located, opened, problem_of
from pagestream.cli._token_holes import hole_warnings
from pagestream.tokens.corpus import Format, native_corpus
from pagestream.weights import holes
from pagestream.weights.checkpoint import Checkpoint, native_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass
class Verdict:
    """The result for a path.

    Attributes:
        path: The path.
        kind: ``"safetensors"`` or ``"tokens"``; None if it is unknown.
        files: The number of files.
        checked: The number of files that were compared with checksums, byte by byte.
        bad: Everything that is wrong.
        warnings: Holes in files whose bytes were not compared, or are wrong; and files of the folder that
            were not verified, or that belong to several splits.
        written: Checksum files that were written.
        vocabulary: Every token was found to be at least 0 and below this number; None if that was not
            requested.
        note: The part that could not be verified, so that the exit code is 3.
        error: Why the path could not be read.
    """

    path: str
    kind: str | None = None
    files: int = 0
    checked: int = 0
    bad: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    written: tuple[str, ...] = ()
    vocabulary: int | None = None
    note: str | None = None
    error: str | None = None


def verify(
    paths: Paths,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that read and hash.")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the checksums of safetensors files beside them.")
    ] = False,
    vocabulary: Annotated[
        int | None,
        typer.Option(min=1, help="Read all tokens, and refuse ids that are not below this number."),
    ] = None,
    dtype: Dtype = None,
    format: Annotated[Format | None, typer.Option(help="The format of token files.")] = None,
    require_checksums: Annotated[
        bool, typer.Option("--require-checksums", help="Exit with 3 if a file has no checksum.")
    ] = False,
    allow_unverified: Annotated[
        bool,
        typer.Option("--allow-unverified", help="Exit with 0, not 3, if nothing of a path can be verified."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Validate headers, indices and sizes, and compare bytes with checksums where there are any.

    Checksums are files that --write has written, or the SHA-256 in the names of the Hugging Face cache.

    Paths are verified side by side. The exit code is 0 if all are good, 1 if a file is bad, 2 if a path
    cannot be read, and 3 if nothing of a path can be verified, such as raw tokens.

    Example: pagestream verify ~/.cache/huggingface/hub/models--gpt2/snapshots/*
    """
    for other, is_given in (("--allow-unverified", allow_unverified), ("--write", write)):
        if require_checksums and is_given:
            message = f"--require-checksums and {other} exclude each other: use one of them"
            raise ValueError(message)
    for path in paths:
        # Report missing paths before hours of work. The stem of a Megatron pair is not a file.
        place = located(path)
        if not (os.path.lexists(place) or os.path.lexists(f"{place}.idx") or glob.has_magic(place)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    work = _Work(checked_dtype(dtype), format, vocabulary, write=write, require_checksums=require_checksums)
    verdicts = _verdicts(paths, threads, work)
    if as_json:
        _output.print_json(verdicts)
    else:
        _print(verdicts)
    if any(verdict.bad for verdict in verdicts):
        raise typer.Exit(_codes.BAD)
    if any(verdict.error for verdict in verdicts):
        raise typer.Exit(_codes.WRONG_USE)
    if any(verdict.note for verdict in verdicts) and not allow_unverified:
        raise typer.Exit(_codes.NOT_VERIFIED)


class _Stopped(Exception):  # noqa: N818 - it is not an error
    """Ends the work at a path."""


@dataclass(frozen=True)
class _Work:
    """The options for all paths."""

    dtype: str | None
    format: Format | None
    vocabulary: int | None
    write: bool
    require_checksums: bool


def _verdicts(paths: list[str], threads: int | None, work: _Work) -> list[Verdict]:
    """Verifies paths in parallel, and shows the progress."""
    most = threads or len(os.sched_getaffinity(0))
    workers = min(len(paths), most)
    stops = threading.Event()
    # Bytes done and total bytes of each path.
    amounts = [(0, 0)] * len(paths)
    with bar_of_bytes() as bar, ThreadPoolExecutor(workers) as pool:
        task = bar.add_task("verify", total=None, visible=False)

        def verdict(number: int) -> Verdict:
            def report(done_bytes: int, total_bytes: int) -> None:
                if stops.is_set():
                    raise _Stopped
                amounts[number] = (done_bytes, total_bytes)
                done, total = map(sum, zip(*amounts, strict=True))
                bar.update(task, completed=done, total=total, visible=bool(total))

            own_threads = threads and max(1, threads // workers)
            return _verdict(paths[number], own_threads, work, report)

        try:
            futures = [pool.submit(verdict, number) for number in range(len(paths))]
            for future in as_completed(futures):
                future.result()  # raises the first error of any path
            return [future.result() for future in futures]
        finally:
            # Also after a Ctrl-C between two submissions: the pool waits for each started path.
            stops.set()


def _verdict(path: str, threads: int | None, work: _Work, report: Callable[[int, int], None]) -> Verdict:
    found = Verdict(path)
    try:
        # Write checksums only for a complete checkpoint.
        with opened(path, work.dtype, work.format, ahead=False, partly=not work.write) as files:
            if isinstance(files, Checkpoint):
                _refuse_vocabulary(path, work)
                found.kind, found.files = "safetensors", len(files.files)
                if work.write:
                    # Checksums of a hole would make its zeros look correct.
                    found.warnings = holes.warnings(native_files(files))
                    found.written = files.write_checksums(threads=threads, progress=report)
                else:
                    verified = files.verify(threads=threads, progress=report)
                    found.checked = len(verified.checked)
                    if work.require_checksums and verified.unchecked:
                        found.note = _without_checksum(verified.unchecked, found.files)
                    found.bad = list(map(str, verified.bad))
                    found.warnings = list(verified.warnings)
                    if problem := problem_of(files):
                        found.bad.append(f"{path}: {problem}")
            else:
                found.kind, found.files = "tokens", len(files.shards)
                native_corpus(files).check_documents()
                found.warnings = hole_warnings(files)
                if work.vocabulary is not None:
                    found.vocabulary = work.vocabulary
                    found.bad = list(beyond(files, work.vocabulary, report))
                elif files.shards[0].format == "raw":
                    found.note = "raw tokens have neither header nor checksum"
                if work.require_checksums:
                    found.note = "token files have no checksums"
            found.warnings += folder_warnings(path, of_weights=isinstance(files, Checkpoint))
    except _output.BAD_FILE as error:
        found.bad = [_output.told(error)]
    except (OSError, ValueError) as error:
        found.error = _output.told(error)
    return found


def _refuse_vocabulary(path: str, work: _Work) -> None:
    if work.vocabulary is not None:
        message = f"{path}: --vocabulary is for token files, but these are safetensors weights"
        raise ValueError(message)


def _without_checksum(names: Sequence[str], files: int) -> str:
    return (
        f"{len(names)} of {count(files, 'file')} without a checksum, such as {os.path.basename(names[0])}; "
        "verify --write makes checksums of a checkpoint that is known to be good"
    )


def _print(verdicts: list[Verdict]) -> None:
    console = _console.console()
    for verdict in verdicts:
        summary, lines, needs_action = _summary(verdict)
        style = _console.ACTION if needs_action else None
        _console.print_text(console, summary, head=f"{verdict.path}: ", indent=2, style=style)
        for line in lines:
            _console.print_text(console, line, head="  ", indent=4, style=style)
        _console.print_warnings(console, verdict.warnings)


def _summary(verdict: Verdict) -> tuple[str, list[str], bool]:
    """Returns a line about a path, the lines below it, and whether they need an action."""
    if verdict.bad:
        return "bad", verdict.bad, True
    if verdict.error:
        return "not verified", [verdict.error], True
    if verdict.note:
        return f"not verified. {verdict.note}", [], True
    if verdict.written:
        written = count(len(verdict.written), "file")
        compared = f"headers and sizes are right; {written} of checksums written"
    elif verdict.vocabulary is not None:
        compared = f"every id is below {verdict.vocabulary}"
    elif verdict.checked:
        compared = f"every byte of {count(verdict.checked, 'file')} of {verdict.files} has its checksum"
    else:
        compared = "headers and sizes are right; no checksums to compare bytes with"
    return f"good. {count(verdict.files, 'file')} of {verdict.kind}: {compared}", [], False
