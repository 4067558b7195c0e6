"""Tensors of a checkpoint that are read before the program asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagestream import _native
from pagestream._common.public import set_module

if TYPE_CHECKING:
    from typing import Self

    from pagestream.weights.streaming import Wanted

__all__ = ["Warming"]


@set_module("pagestream")
class Warming:
    """Tensors of a checkpoint that are read in the background, before the program asks for them.

    `Checkpoint.warm` returns it. Reading goes on without this handle, until the checkpoint is closed or
    warmed again. The handle keeps the checkpoint open.

    As a context manager it cancels the remaining reads at the end of the ``with`` block. A forked child
    process has no warming, and reads by itself.

    Examples:
        >>> from pagestream import open_checkpoint
        >>> weights = open_checkpoint("model.safetensors")
        >>> with weights.warm() as warming:
        ...     model = dict.fromkeys(weights)  # takes a minute, say
        ...     for name in model:
        ...         model[name] = weights[name].copy()
        ...     is_done = warming.wait()
        >>> is_done, warming.fraction
        (True, 1.0)
    """

    __slots__ = ("_files", "_native")

    def __init__(self, files: _native.Checkpoint, native: _native.Warming) -> None:
        """Wraps the native object; `Checkpoint.warm` makes it."""
        self._files = files
        self._native = native

    @property
    def fraction(self) -> float:
        """The fraction of the plan's bytes that was read, or found in the page cache: 0.0 to 1.0.

        Tensors that a stream reads itself are not counted. The fraction is 1.0 if the plan has no bytes.
        """
        planned_bytes = self._native.planned_bytes
        return self._native.done_bytes / planned_bytes if planned_bytes else 1.0

    @property
    def bytes_read(self) -> int:
        """The number of bytes fetched. Bytes that were already in the page cache are not counted."""
        return self._native.read_bytes

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until no more bytes are read unless the program takes some.

        This is so once all bytes are read, after `cancel`, or once the memory is full. In memory of the
        process, reading goes on as the program takes tensors.

        Args:
            timeout: Maximum number of seconds to wait; None for no limit.

        Returns:
            True, or False after `timeout` seconds.

        Raises:
            MappedReadError: A file was truncated, or its storage failed; with path and offset. Each further
                call raises it again; tensors that were read before can be used.
            FileChangedError: A file was rewritten since it was opened. Each further call raises it again.
            ValueError: `timeout` is negative, infinite or not a number; or this is a child of the process
                that started the warming.

        Examples:
            >>> from pagestream import open_checkpoint
            >>> open_checkpoint("model.safetensors").warm().wait()
            True
        """
        return self._native.wait(timeout)

    def cancel(self) -> None:
        """Stops reading. Bytes that were read stay usable.

        Examples:
            >>> from pagestream import open_checkpoint
            >>> warming = open_checkpoint("model.safetensors").warm()
            >>> warming.cancel()
            >>> warming.wait()
            True
        """
        self._native.cancel()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Cancels the remaining reads."""
        self.cancel()

    def __repr__(self) -> str:
        """Shows the bytes read, the bytes planned, and the state."""
        done, planned = self._native.done_bytes, self._native.planned_bytes
        return f"<{type(self).__name__} {done:,} of {planned:,} bytes, {self._native.state}>"


def started(
    files: _native.Checkpoint, wanted: list[Wanted], memory_bytes: int | None, threads: int | None
) -> Warming:
    """Starts to read a plan; see `Checkpoint.warm`."""
    native = [each.native() for each in wanted]
    return Warming(files, _native.Warming(files, native, memory_bytes, threads))
