"""The exceptions that pagestream raises beside Python's own.

A plain `OSError` (``FileNotFoundError``, ``PermissionError``, ``IsADirectoryError``, …) carries
``errno`` and ``filename`` and is raised when a file cannot be opened or mapped. The classes here
are for what Python has no word for.

Example:
    >>> import pagestream
    >>> issubclass(pagestream.errors.MappedReadError, OSError)
    True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = [
    "FileChangedError",
    "FormatError",
    "MappedReadError",
    "PagestreamError",
    "SafetensorError",
    "SliceError",
    "StateMismatchError",
]


class PagestreamError(Exception):
    """Base of the classes in this module.

    Example:
        >>> from pagestream.errors import FormatError, PagestreamError
        >>> issubclass(FormatError, PagestreamError)
        True
    """


class FormatError(PagestreamError, ValueError):
    """A file's bytes do not follow its format.

    Example:
        >>> from pagestream.errors import FormatError
        >>> issubclass(FormatError, ValueError)
        True
    """


class StateMismatchError(PagestreamError, ValueError):
    """A saved state belongs to other data or other settings.

    Example:
        >>> from pagestream.errors import StateMismatchError
        >>> issubclass(StateMismatchError, ValueError)
        True
    """


class MappedReadError(PagestreamError, OSError):
    """Bytes of an open file could not be read: it was cut, or its storage failed.

    Attributes:
        errno: The system's error number, ``EIO`` if the file was cut.
        filename: The file's path.
        offset: Where the bytes that could not be read begin, in bytes.
        length: How many could not be read, in bytes.

    Example:
        >>> import errno
        >>> from pagestream.errors import MappedReadError
        >>> MappedReadError(errno.EIO, "cannot read", "tokens.bin").filename
        'tokens.bin'
    """

    offset: int | None = None
    length: int | None = None


class FileChangedError(PagestreamError, OSError):
    """A file is no longer the one that was opened: cut, rewritten, deleted or replaced.

    ``errno`` is ``ESTALE``, ``filename`` the path.

    Example:
        >>> import errno
        >>> from pagestream.errors import FileChangedError
        >>> FileChangedError(errno.ESTALE, "it was rewritten", "tokens.bin").errno == errno.ESTALE
        True
    """


if TYPE_CHECKING:

    class SafetensorError(FormatError):
        """A safetensors file, or what was asked of one, is wrong. Made at run time, see below."""

    class SliceError(SafetensorError, IndexError):
        """An index does not fit a tensor. Made at run time, see below."""


def _safetensor_error() -> type[FormatError]:
    """Makes `SafetensorError`, derived from upstream's class too where that is installed."""
    bases: tuple[type, ...] = (FormatError,)
    try:
        from safetensors import SafetensorError as Upstream
    except ImportError:
        pass
    else:
        bases = (FormatError, Upstream)
    return type("SafetensorError", bases, {"__doc__": _SAFETENSOR_ERROR, "__module__": __name__})


_SAFETENSOR_ERROR = """A safetensors file, or what was asked of one, is wrong.

    Handlers of upstream's class of that name catch it too, where safetensors is installed.

    Example:
        >>> from pagestream.errors import FormatError, SafetensorError
        >>> issubclass(SafetensorError, FormatError)
        True
    """


_SLICE_ERROR = """An index does not fit a tensor, or is not of the kind that slices take.

    Example:
        >>> from pagestream.errors import SafetensorError, SliceError
        >>> issubclass(SliceError, SafetensorError), issubclass(SliceError, IndexError)
        (True, True)
    """


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    # Late, because `import pagestream` must not import safetensors.
    if name == "SafetensorError":
        made = globals()[name] = _safetensor_error()
        return made
    if name == "SliceError":
        # Whichever of the two is asked for first, there is one class of each name.
        bases = (globals().get("SafetensorError") or __getattr__("SafetensorError"), IndexError)
        made = globals()[name] = type(name, bases, {"__doc__": _SLICE_ERROR, "__module__": __name__})
        return made
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
