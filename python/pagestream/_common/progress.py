"""Progress of long operations: ``progress=True`` for a bar, or a callable that gets two numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pagestream._common.amounts import size
from pagestream._common.ranks import is_first_rank

Progress = bool | Callable[[int, int], object] | None

# Without a bar, a line is printed for each tenth.
_LINES = 10


def checked(progress: Progress) -> None:
    """Rejects values that `reporting` cannot use.

    Raises:
        TypeError: The value is neither a bool nor a callable.
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        message = f"progress must be True, False or a callable, not {progress!r}"  # type: ignore[unreachable]
        raise TypeError(message)


@contextmanager
def reporting(progress: Progress, total_bytes: int, label: str) -> Iterator[Callable[[int], object] | None]:
    """Yields the function to call with the bytes done so far, or None without progress.

    Args:
        progress: True for a bar on standard error, on rank 0 only. It uses tqdm if that is installed, and
            otherwise prints a line for each tenth. Or a callable that is called with (bytes done, total
            bytes), on each rank.
        total_bytes: Total bytes; 0 if unknown.
        label: Name of the operation, for the bar.

    Raises:
        TypeError: `progress` is neither a bool nor a callable.
    """
    checked(progress)
    if progress is None or progress is False or (progress is True and not is_first_rank()):
        yield None
    elif progress is not True:
        report = progress
        yield lambda done_bytes: report(done_bytes, total_bytes)
    else:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            yield _Lines(total_bytes, label)
            return
        with tqdm(total=total_bytes or None, desc=label, unit="B", unit_scale=True, unit_divisor=1024) as bar:
            yield lambda done_bytes: bar.update(done_bytes - bar.n)


class _Lines:
    """Prints a line to standard error for each tenth of the work."""

    def __init__(self, total_bytes: int, label: str) -> None:
        self._total_bytes, self._label, self._tenths = total_bytes, label, 0

    def __call__(self, done_bytes: int) -> None:
        tenths = done_bytes * _LINES // self._total_bytes if self._total_bytes else 0
        if tenths > self._tenths:
            self._tenths = tenths
            amounts = f"{size(done_bytes)} of {size(self._total_bytes)}"
            print(f"{self._label}: {tenths * 100 // _LINES} %, {amounts}", file=sys.stderr)  # noqa: T201
