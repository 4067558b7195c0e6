"""The exceptions that pagestream raises beside Python's own.

A plain `OSError` (``FileNotFoundError``, ``PermissionError``, ``IsADirectoryError``, …) carries
``errno`` and ``filename`` and is raised when a file cannot be opened or mapped. The classes here
are for failures that Python has no class for, such as a file that changed while it was open.

Examples:
    >>> import pagestream
    >>> issubclass(pagestream.errors.MappedReadError, OSError)
    True
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "ChecksumError",
    "FileChangedError",
    "FormatError",
    "MappedReadError",
    "PagestreamError",
    "RankError",
    "SafetensorError",
    "SliceError",
    "StateMismatchError",
]


class PagestreamError(Exception):
    """Base of the classes in this module.

    Examples:
        >>> from pagestream.errors import FormatError, PagestreamError
        >>> issubclass(FormatError, PagestreamError)
        True
    """


class FormatError(PagestreamError, ValueError):
    """A file's bytes do not follow its format.

    Examples:
        >>> from pagestream.errors import FormatError
        >>> issubclass(FormatError, ValueError)
        True
    """


class ChecksumError(FormatError):
    """Bytes of a checkpoint do not have their checksum, or have none although that was asked for.

    Attributes:
        path: The file; that of the checksums if these cannot be understood.
        name: The tensor; None for the header, the whole file and the file of the checksums.
        offset: Where its bytes begin in the file; None where that cannot be told.
        expected: The checksum that the bytes should have, in hexadecimal digits; or the size of the file in
            bytes. None if no checksum is known.
        found: What was found instead.

    Examples:
        >>> from pagestream.errors import ChecksumError, FormatError
        >>> issubclass(ChecksumError, FormatError)
        True
    """

    path: str | None = None
    name: str | None = None
    offset: int | None = None
    expected: str | None = None
    found: str | None = None


class StateMismatchError(PagestreamError, ValueError):
    """A saved state belongs to other data or other settings.

    Examples:
        >>> from pagestream.errors import StateMismatchError
        >>> issubclass(StateMismatchError, ValueError)
        True
    """


class RankError(PagestreamError, RuntimeError):
    """Another rank of a job that loads together has failed, and so this one cannot go on.

    Attributes:
        rank: The rank in the process group; None where the group's store cannot be reached.
        told: What happened there.
        is_gone: Whether the rank takes part in nothing any more: it was killed, or is stopped.

    Examples:
        >>> from pagestream.errors import RankError
        >>> str(RankError(3, "FileNotFoundError: model.safetensors"))
        'rank 3 of the process group: FileNotFoundError: model.safetensors'
    """

    def __init__(self, rank: int | None, told: str, is_gone: bool = False) -> None:  # noqa: FBT001, FBT002
        """Keeps what is known."""
        super().__init__(rank, told, is_gone)
        self.rank, self.told, self.is_gone = rank, told, is_gone

    def __str__(self) -> str:
        """Returns the message, with the rank in front."""
        return self.told if self.rank is None else f"rank {self.rank} of the process group: {self.told}"


class MappedReadError(PagestreamError, OSError):
    """Bytes of an open file could not be read: it was cut, or its storage failed.

    Attributes:
        errno: The system's error number, ``EIO`` if the file was cut.
        filename: The file's path.
        offset: Where the bytes that could not be read begin, in bytes.
        length: How many could not be read, in bytes.

    Examples:
        >>> import errno
        >>> from pagestream.errors import MappedReadError
        >>> MappedReadError(errno.EIO, "cannot read", "tokens.bin").filename
        'tokens.bin'
    """

    offset: int | None = None
    length: int | None = None


class FileChangedError(PagestreamError, OSError):
    """A file has changed since it was opened: it was truncated, rewritten, deleted or replaced.

    Its size and the time of its last modification tell. A program that rewrites a file at the same size and
    puts that time back is not noticed; the time of the last change of status tells nothing, because links and
    permissions change it, too.

    ``errno`` is ``ESTALE``, ``filename`` the path.

    Examples:
        >>> import errno
        >>> from pagestream.errors import FileChangedError
        >>> FileChangedError(errno.ESTALE, "it was rewritten", "tokens.bin").errno == errno.ESTALE
        True
    """


if TYPE_CHECKING:

    class SafetensorError(FormatError):
        """A safetensors file or a request for its content is invalid.

        Handlers of upstream's class of that name catch it too, where safetensors is installed.
        """

    class SliceError(SafetensorError, IndexError):
        """An index does not fit a tensor, or is not of the kind that slices take."""


def _define_safetensor_errors() -> None:
    """Defines the classes whose base is upstream's class, where safetensors is installed."""
    upstream: Any = Exception
    with suppress(ImportError):
        upstream = import_module("safetensors").SafetensorError

    class SafetensorError(FormatError, upstream):  # type: ignore[misc]
        """A safetensors file or a request for its content is invalid.

        Handlers of upstream's class of that name catch it too, where safetensors is installed.

        Examples:
            >>> from pagestream.errors import FormatError, SafetensorError
            >>> issubclass(SafetensorError, FormatError)
            True
        """

        __qualname__ = "SafetensorError"

    class SliceError(SafetensorError, IndexError):
        """An index does not fit a tensor, or is not of the kind that slices take.

        Examples:
            >>> from pagestream.errors import SafetensorError, SliceError
            >>> issubclass(SliceError, SafetensorError), issubclass(SliceError, IndexError)
            (True, True)
        """

        __qualname__ = "SliceError"

    # Another thread may have been faster: there is one class of each name.
    if "SliceError" not in globals():
        globals().update(SafetensorError=SafetensorError, SliceError=SliceError)


if not TYPE_CHECKING:  # for type checkers a name that is not here is an error

    def __getattr__(name: str) -> object:
        # Late, because `import pagestream` must not import safetensors.
        if name in ("SafetensorError", "SliceError"):
            _define_safetensor_errors()
            return globals()[name]
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
