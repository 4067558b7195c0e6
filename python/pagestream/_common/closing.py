"""What a ``with`` block closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class ClosedByWith:
    """Base of classes with a `close` that the end of a ``with`` block calls."""

    __slots__ = ()

    def close(self) -> None:
        """Lets go of what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Closes."""
        self.close()
