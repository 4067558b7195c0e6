"""The base of objects that a ``with`` block closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class ClosedByWith:
    """Base of classes whose `close` is called at the end of a ``with`` block."""

    __slots__ = ()

    def close(self) -> None:
        """Releases the files or threads."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Closes."""
        self.close()
