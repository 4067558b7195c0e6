"""Progress of long work: ``progress=True`` for a bar, or a callable that gets two numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = bool | Callable[[int, int], object] | None


def checked(progress: Progress) -> None:
    """Refuses what `reporting` cannot use.

    Raises:
        TypeError: It is neither a bool nor a callable.
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        message = f"progress must be True, False or a callable, not {progress!r}"  # type: ignore[unreachable]
        raise TypeError(message)


@contextmanager
def reporting(progress: Progress, total_bytes: int, label: str) -> Iterator[Callable[[int], object] | None]:
    """Yields the function to call with the bytes done so far, or None without progress.

    Args:
        progress: True for a bar on standard error (needs tqdm), or a callable that is called with
            (bytes done, bytes in all).
        total_bytes: Bytes in all.
        label: Name of the work, for the bar.

    Raises:
        ImportError: ``progress=True`` and tqdm is not installed.
        TypeError: `progress` is neither a bool nor a callable.
    """
    checked(progress)
    if progress is None or progress is False:
        yield None
    elif progress is True:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            message = "progress=True draws its bar with tqdm: pip install tqdm, or pass a callable"
            raise ImportError(message) from error
        with tqdm(total=total_bytes, desc=label, unit="B", unit_scale=True) as bar:
            yield lambda done_bytes: bar.update(done_bytes - bar.n)
    else:
        report = progress
        yield lambda done_bytes: report(done_bytes, total_bytes)
