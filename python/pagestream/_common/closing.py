"""Base classes for objects with open files: ``with`` closes them, and properties show how they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import Self


class ClosedByWith:
    """Base of classes with a `close` that runs at the end of a ``with`` block."""

    __slots__ = ()

    def close(self) -> None:
        """Releases the files or threads."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Closes the object."""
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
    """Base of classes that read the files in `_files`."""

    __slots__ = ()

    _files: HeldFiles

    @property
    def mode(self) -> str:
        """How the files are read: ``"shared"``, ``"private"`` or ``"read"``; see `MappedFile`.

        If the files differ, it is the weakest mode: ``"read"``, otherwise ``"private"``.
        """
        return self._files.mode

    @property
    def reason(self) -> str | None:
        """Why `mode` is not the first choice, or None if it is.

        For several files, it is the reason of the first file in `mode`, with its path and the number of such
        files.
        """
        return self._files.reason

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._files.closed

    def check(self) -> None:
        """Raises if a file is no longer the file that was opened; see `MappedFile.check`.

        The index of a checkpoint is also checked.

        Raises:
            FileChangedError: A file was truncated, extended, rewritten, deleted or replaced.
            ValueError: The object is closed.

        Examples:
            >>> from pagestream import open_checkpoint, open_tokens
            >>> open_tokens("tokens.bin").check()
            >>> open_checkpoint("model.safetensors").check()
        """
        self._files.check()

    def close(self) -> None:
        """Closes the files. Arrays and tensors already returned stay valid.

        Examples:
            >>> from pagestream import open_tokens
            >>> with open_tokens("tokens.bin") as tokens:
            ...     some = tokens[:3]
            >>> tokens.closed, some
            (True, array([0, 1, 2], dtype=uint16))
        """
        self._files.close()
