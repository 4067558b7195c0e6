"""Anonymous memory for staging bytes: `StagingBuffer`."""

from __future__ import annotations

import os
from typing import Any, Literal, Self

from pagestream import _native
from pagestream._common.public import set_module

__all__ = ["StagingBuffer"]

HugePages = Literal["auto", "always", "never"]
Protection = Literal["read", "readwrite"]


@set_module("pagestream")
class StagingBuffer(_native.StagingBuffer):
    r"""Anonymous memory for staging bytes: page-aligned, zeroed, writable through the buffer protocol.

    Args:
        nbytes: Size in bytes.
        shared: Whether other processes may map it. Shared memory is a memfd. A pickle, for example from
            `multiprocessing`, transfers its descriptor and no bytes. It can grow, but not shrink.
        huge_pages: ``"always"`` and ``"never"`` request huge pages or do not; ``"auto"`` requests them for at
            least 2 MiB. `huge_page_bytes` shows the result.

    Attributes:
        nbytes: Size in bytes.
        shared: Whether other processes may map it.
        sealed: Whether `seal` has made it immutable.
        huge_page_bytes: Bytes of the buffer that are on huge pages now, from ``/proc/self/smaps``.

    Raises:
        OSError: There is no memory.
        ValueError: `huge_pages` is an unknown word.

    The memory stays at its address while arrays, views or tensors of it are alive: `resize`, `protect` and
    `seal` then raise. Create arrays with ``np.frombuffer``. The death of an array from
    ``np.ndarray(buffer=...)`` cannot be observed; after one was created, these methods always raise.

    Examples:
        >>> import numpy as np
        >>> from pagestream import StagingBuffer
        >>> b = StagingBuffer(4096)
        >>> a = np.frombuffer(b, "u2")
        >>> a[:] = 7
        >>> bytes(memoryview(b)[:2])
        b'\x07\x00'
    """

    __slots__ = ()

    def __new__(
        cls,
        nbytes: int,
        *,
        shared: bool = False,
        huge_pages: HugePages = "auto",
    ) -> Self:
        """Allocates the memory."""
        return super().__new__(cls, nbytes, shared, huge_pages, None)

    def resize(self, nbytes: int) -> None:
        """Changes the size by moving page tables (mremap(2)), never by copying.

        New bytes are zero, unless another process that shares them has already written to them.

        Args:
            nbytes: The new size in bytes.

        Raises:
            BufferError: Views of the buffer are alive.
            OSError: There is no memory; or the buffer is sealed, or shared and would shrink.

        Examples:
            >>> from pagestream import StagingBuffer
            >>> b = StagingBuffer(4096)
            >>> b.resize(1 << 20)
            >>> b.nbytes
            1048576
        """
        super().resize(nbytes)

    def protect(self, protection: Protection) -> None:  # type: ignore[override]
        """Makes the memory read-only or writable again (mprotect(2)).

        While it is read-only, views of it are read-only, and a stray write by native code is a
        segmentation fault instead of silent damage.

        Args:
            protection: ``"read"`` or ``"readwrite"``.

        Raises:
            BufferError: With ``"read"``: views of the buffer, which may be writable, are alive.
            OSError: The buffer is sealed.

        Examples:
            >>> from pagestream import StagingBuffer
            >>> b = StagingBuffer(4096)
            >>> b.protect("read")
            >>> memoryview(b).readonly
            True
        """
        super().protect(protection)

    def seal(self) -> None:
        """Makes shared memory immutable, for every process and for good (memfd seals).

        Raises:
            BufferError: Views of the buffer are alive.
            OSError: The buffer is not shared, or another process has it mapped writable.

        Examples:
            >>> from pagestream import StagingBuffer
            >>> b = StagingBuffer(4096, shared=True)
            >>> b.seal()
            >>> b.sealed, memoryview(b).readonly
            (True, True)
        """
        super().seal()

    def fileno(self) -> int:
        """Returns the memfd of a shared buffer, which the buffer owns: do not close it.

        Raises:
            ValueError: The buffer is private.

        Examples:
            >>> from pagestream import StagingBuffer
            >>> StagingBuffer(4096, shared=True).fileno() > 2
            True
        """
        return super().fileno()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles a shared buffer as its descriptor, for `multiprocessing`.

        Raises:
            TypeError: The buffer is private.
        """
        if not self.shared:
            message = "a private StagingBuffer cannot be sent to another process; use shared=True"
            raise TypeError(message)
        from multiprocessing.reduction import DupFd

        return _map_descriptor, (type(self), DupFd(self.fileno()), self.nbytes)

    def __repr__(self) -> str:
        """Shows size and kind."""
        kind = "sealed" if self.sealed else "shared" if self.shared else "private"
        return f"<{type(self).__name__} {self.nbytes} bytes, {kind}>"


def _map_descriptor(cls: type[StagingBuffer], duplicate: Any, nbytes: int) -> StagingBuffer:  # noqa: ANN401
    descriptor = duplicate.detach()
    try:
        return _native.StagingBuffer.__new__(cls, nbytes, True, "auto", descriptor)  # noqa: FBT003
    finally:
        os.close(descriptor)
