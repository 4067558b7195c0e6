"""The exceptions that pagestream raises in addition to Python's own.

If a file cannot be opened or mapped, a plain `OSError` (``FileNotFoundError``, ``PermissionError``,
``IsADirectoryError``, …) with ``errno`` and ``filename`` is raised. The classes in this module are for
failures without a Python class, for example a file that changed while it was open.

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
    """Bytes of a checkpoint do not match their checksum, or have none although one was required.

    Attributes:
        path: The file; or the checksum file if that is malformed.
        name: The tensor; None for the header, the whole file and the checksum file.
        offset: The offset of its bytes in the file; None if it is unknown.
        expected: The expected checksum, in hexadecimal digits; or the expected size of the file in bytes.
            None if no checksum is known.
        found: The actual checksum or size.

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
    """Another rank of a joint load has failed, so this rank cannot continue.

    Attributes:
        rank: The rank in the process group; None if the group's store cannot be reached.
        told: A description of the failure.
        is_gone: Whether the rank no longer takes part: it was killed, or is stopped.

    Examples:
        >>> from pagestream.errors import RankError
        >>> str(RankError(3, "FileNotFoundError: model.safetensors"))
        'rank 3 of the process group: FileNotFoundError: model.safetensors'
    """

    def __init__(self, rank: int | None, told: str, is_gone: bool = False) -> None:  # noqa: FBT001, FBT002
        """Keeps the arguments."""
        super().__init__(rank, told, is_gone)
        self.rank, self.told, self.is_gone = rank, told, is_gone

    def __str__(self) -> str:
        """Returns the message, prefixed with the rank."""
        return self.told if self.rank is None else f"rank {self.rank} of the process group: {self.told}"


class MappedReadError(PagestreamError, OSError):
    """Bytes of an open file were unreadable: it was truncated, or its storage failed.

    Attributes:
        errno: The system's error number, ``EIO`` if the file was truncated.
        filename: The file's path.
        offset: The offset of the unreadable bytes.
        length: The number of unreadable bytes.

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

    The file's size and modification time show this. A program that rewrites a file with the same size and
    restores that time is not detected. The ctime cannot help, because links and permissions also change it.

    ``errno`` is ``ESTALE``, and ``filename`` is the path.

    Examples:
        >>> import errno
        >>> from pagestream.errors import FileChangedError
        >>> FileChangedError(errno.ESTALE, "it was rewritten", "tokens.bin").errno == errno.ESTALE
        True
    """


if TYPE_CHECKING:

    class SafetensorError(FormatError):
        """A safetensors file, or a request for its content, is invalid.

        If safetensors is installed, handlers of upstream's class of that name also catch it.
        """

    class SliceError(SafetensorError, IndexError):
        """An index does not fit a tensor, or is of a kind that slices do not support."""


def _define_safetensor_errors() -> None:
    """Defines the classes with upstream's class as a base, if safetensors is installed."""
    upstream: Any = Exception
    with suppress(ImportError):
        upstream = import_module("safetensors").SafetensorError

    class SafetensorError(FormatError, upstream):  # type: ignore[misc]
        """A safetensors file, or a request for its content, is invalid.

        If safetensors is installed, handlers of upstream's class of that name also catch it.

        Examples:
            >>> from pagestream.errors import FormatError, SafetensorError
            >>> issubclass(SafetensorError, FormatError)
            True
        """

        __qualname__ = "SafetensorError"

    class SliceError(SafetensorError, IndexError):
        """An index does not fit a tensor, or is of a kind that slices do not support.

        Examples:
            >>> from pagestream.errors import SafetensorError, SliceError
            >>> issubclass(SliceError, SafetensorError), issubclass(SliceError, IndexError)
            (True, True)
        """

        __qualname__ = "SliceError"

    # Another thread may have been faster. Each class must exist only once.
    if "SliceError" not in globals():
        globals().update(SafetensorError=SafetensorError, SliceError=SliceError)


if not TYPE_CHECKING:  # for type checkers, a name that is missing here is an error

    def __getattr__(name: str) -> object:
        # Late, because `import pagestream` must not import safetensors.
        if name in ("SafetensorError", "SliceError"):
            _define_safetensor_errors()
            return globals()[name]
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
