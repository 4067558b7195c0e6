"""Generators that end when, and as, those that use them do."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any


@contextlib.contextmanager
def telling(pairs: Generator[Any, None, None]) -> Iterator[Generator[Any, None, None]]:
    """Closes a generator at the end, and raises in it what its consumer raises: ranks tell each other why."""
    try:
        yield pairs
    except BaseException as error:
        pairs.throw(error)
        raise
    finally:
        pairs.close()
