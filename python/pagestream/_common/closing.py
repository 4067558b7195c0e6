"""Bases of objects that hold files open: closed by ``with``, and telling how the files are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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


class HeldFiles(Protocol):
    """Open files."""

    @property
    def mode(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def closed(self) -> bool: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


class HoldsFiles(ClosedByWith):
    """Base of classes whose `_files` are what they read."""

    __slots__ = ()

    _files: HeldFiles

    @property
    def mode(self) -> str:
        """How the files are read: ``"shared"``, ``"private"`` or ``"read"``; see `MappedFile`.

        If it differs from file to file, the weakest: ``"read"``, else ``"private"``.
        """
        return self._files.mode

    @property
    def reason(self) -> str | None:
        """Why `mode` is not the first choice; None if it is.

        Of several files, the reason of the first one in `mode`, with its path and their number.
        """
        return self._files.reason

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._files.closed

    def check(self) -> None:
        """Raises if a file is no longer the one that was opened; see `MappedFile.check`.

        The index of a checkpoint is a file, too.

        Raises:
            FileChangedError: Cut, grown, rewritten, deleted or replaced.
            ValueError: It is closed.

        Examples:
            >>> from pagestream import open_checkpoint, open_tokens
            >>> open_tokens("tokens.bin").check()
            >>> open_checkpoint("model.safetensors").check()
        """
        self._files.check()

    def close(self) -> None:
        """Closes the files. Arrays and tensors that are out stay valid.

        Examples:
            >>> from pagestream import open_tokens
            >>> with open_tokens("tokens.bin") as tokens:
            ...     some = tokens[:3]
            >>> tokens.closed, some
            (True, array([0, 1, 2], dtype=uint16))
        """
        self._files.close()
