"""Ends generators when their consumers end, with the same exceptions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any


@contextlib.contextmanager
def telling(pairs: Generator[Any, None, None]) -> Iterator[Generator[Any, None, None]]:
    """Closes a generator at the end, and raises its consumer's exception in it: ranks report the cause."""
    try:
        yield pairs
    except BaseException as error:
        pairs.throw(error)
        raise
    finally:
        pairs.close()
