"""Checksums of checkpoints: files beside the files, and the report of a verification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pagestream import _native
from pagestream._common.atomic_write import Replacement
from pagestream._common.progress import Progress, reporting
from pagestream._common.public import set_module
from pagestream.errors import ChecksumError
from pagestream.weights import holes
from pagestream.weights.streaming import Wanted

# For a file: its number, whether it was compared, all errors, and the path and text of its checksums.
_Outcome: TypeAlias = "tuple[int, bool, list[ChecksumError], tuple[str, str] | None]"

# Strategies that read tensors into their own memory.
_OWNED = ("pread", "direct")


@set_module("pagestream")
@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `Checkpoint.verify`.

    Attributes:
        checked: The files in which every byte was compared with a checksum.
        unchecked: The files without a usable checksum. They were not read.
        bad: Everything that is wrong, in order of the files and of their data. There is an error for each
            tensor, header and file that does not match its checksum, for each tensor without one in a file
            that has checksums, and for each malformed checksum file.
        warnings: Holes among the tensors of files that no checksums prove (see `Checkpoint.warnings`). A hole
            alone proves no damage, so it is not in `bad`.

    Examples:
        >>> import pagestream
        >>> weights = pagestream.open_checkpoint("model.safetensors")
        >>> weights.verify()
        VerifyReport(checked=(), unchecked=('model.safetensors',), bad=(), warnings=())
    """

    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    bad: tuple[ChecksumError, ...]
    warnings: tuple[str, ...] = ()


def write(files: _native.Checkpoint, threads: int | None, progress: Progress) -> tuple[str, ...]:
    """Writes the checksums of each file beside it, once they are known. Returns the paths."""
    written = {}
    for number, _, _, found in _outcomes(_run(files, "write", threads), progress):
        if found is not None:
            path, text = found
            with Replacement() as replacement:
                replacement.open(path, "checksums", replaces_link=True).write(text.encode())
            written[number] = path
    return tuple(written[number] for number in sorted(written))


def verify(files: _native.Checkpoint, threads: int | None, progress: Progress) -> VerifyReport:
    """Compares files with their checksums."""
    outcomes = sorted(_outcomes(_run(files, "verify", threads), progress), key=lambda outcome: outcome[0])
    paths = files.paths
    unproven = {number for number, is_checked, errors, _ in outcomes if errors or not is_checked}
    return VerifyReport(
        checked=tuple(paths[number] for number, is_checked, *_ in outcomes if is_checked),
        unchecked=tuple(paths[number] for number, is_checked, *_ in outcomes if not is_checked),
        bad=tuple(error for _, _, errors, _ in outcomes for error in errors),
        warnings=tuple(holes.warnings(files, unproven)),
    )


def known(files: _native.Checkpoint, names: Iterable[str], threads: int | None) -> _native.ChecksumRun:
    """Returns the checksums for the files of some tensors, after comparing the files' sizes and headers.

    Raises:
        ChecksumError: A file has no checksums, or they do not match. The error is about the first such file.
    """
    run = _run(files, "headers", threads, sorted({files.number_of(name) for name in names}))
    errors = {number: errors for number, _, errors, _ in _outcomes(run, None) if errors}
    if errors:
        raise errors[min(errors)][0]
    return run


def comparable(wanted: list[Wanted], strategy: str) -> list[str]:
    """Returns the names of tensors to compare with checksums. They must be whole, and read into memory.

    Raises:
        ValueError: One of the tensors cannot be compared.
    """
    if strategy not in _OWNED:
        message = (
            f'verify=True compares bytes that are read for the caller; strategy="{strategy}" yields views'
        )
        raise ValueError(message)
    for each in wanted:
        if each.index is not ...:
            message = (
                f"verify=True compares whole tensors, and the plan wants a part of {each.info.name!r}: "
                "leave the part out, or verify() the files beforehand"
            )
            raise ValueError(message)
    return [each.info.name for each in wanted]


def _run(
    files: _native.Checkpoint, task: str, threads: int | None, numbers: Sequence[int] | None = None
) -> _native.ChecksumRun:
    return _native.ChecksumRun(files, task, range(len(files.paths)) if numbers is None else numbers, threads)


def _outcomes(run: _native.ChecksumRun, progress: Progress) -> Iterator[_Outcome]:
    """Yields the result for each file, in no particular order, and reports the bytes that were read."""
    try:
        with reporting(progress, run.total_bytes, "checksums") as report:
            while (found := run.poll()) is not None:
                if report is not None:
                    report(run.done_bytes)
                yield from found
            if report is not None:
                # Files without checksums are not read.
                report(run.total_bytes)
    finally:
        run.close()
