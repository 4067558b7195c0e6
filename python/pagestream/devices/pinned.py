"""Host memory for copies to a device, page-locked in the first of three ways that the driver allows."""

from __future__ import annotations

import logging
import os
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from pagestream import _native
from pagestream.devices.copy_device import finish_copies
from pagestream.files.staging import StagingBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from pagestream.devices.copy_device import CopyDevice

_log = logging.getLogger("pagestream.torch")
# Registering 2 GiB at once fails on some drivers; this amount does not.
PIECE_BYTES = 256 << 20
_BY_RUNTIME = "allocated by the runtime"
# Memory that the device may read. Only `close` frees it, because an exception may come before `close` is
# called.
_in_use: set[PinnedMemory] = set()
# The copies and the registrations belong to the parent.
os.register_at_fork(after_in_child=_in_use.clear)


class PinnedMemory:
    """Staging for copies to a device.

    `pin` allocates it, and page-locks it in the first way that works: a single registration; registrations of
    pieces; memory allocated by the runtime. Memory that is not page-locked also works, but copies from it
    wait for each other.

    It stays until `close` has waited for the copies, whatever ends before.

    Attributes:
        array: The memory; empty before `pin` and after `close`.
        way: How it is page-locked.
    """

    def __init__(self, device: CopyDevice) -> None:
        self._device = device
        self._registered: list[int] = []
        self._span_bytes = 0
        self.array: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self.way = "not page-locked"

    def pin(self, nbytes: int, threads: int = 1) -> None:
        """Allocates the memory with `threads` threads, page-locks it, and reports how."""
        _in_use.add(self)
        # Shared memory: with private memory, a fork would leave the pages that the device knows to the child.
        buffer = StagingBuffer(nbytes, shared=True)
        self.array = np.frombuffer(buffer, np.uint8)
        self._span_bytes = nbytes
        if not self._device.is_cuda:
            return
        # Otherwise the driver would request one page after another (benches/gpu/ablation.py).
        _native.populate(buffer, threads)
        failures, ways = [], [("one registration", nbytes)]
        if nbytes > PIECE_BYTES:
            ways.append(("registrations of 256 MiB", PIECE_BYTES))
        for way, span_bytes in ways:
            failed = self._register(span_bytes)
            if not failed:
                self.way, self._span_bytes = way, span_bytes
                break
            failures.append(f"{way}: CUDA error {failed}")
        else:
            try:
                self.array = self._device.allocate_pinned(nbytes)
                self.way = _BY_RUNTIME
            except RuntimeError as error:
                failures.append(f"{_BY_RUNTIME}: {error}")
        why = f" ({'; '.join(failures)})" if failures else ""
        _log.info("%d bytes of staging for %s: %s%s", nbytes, self._device.device, self.way, why)
        if self.way == "not page-locked":
            # Containers limit locked memory.
            message = f"{nbytes} bytes cannot be page-locked{why}: copies wait for each other"
            warnings.warn(message, RuntimeWarning, stacklevel=4)

    def _register(self, span_bytes: int) -> int:
        """Registers the memory in spans, either all or none. Returns CUDA's error, or 0."""
        address = self.array.__array_interface__["data"][0]
        for first in range(0, self.array.size, span_bytes):
            # Recorded first: an interrupt in between leaves an extra address, but no unrecorded registration.
            self._registered.append(address + first)
            failed = self._device.register(address + first, min(span_bytes, self.array.size - first))
            if failed:
                self._registered.pop()
                self._unregister()
                return failed
        return 0

    def spans(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Cuts a range at the ends of registrations, because no copy may cross two of them."""
        while first < end:
            until = min(end, first - first % self._span_bytes + self._span_bytes)
            yield first, until
            first = until

    def _unregister(self) -> None:
        """Ends all registrations, even if one fails. The last failure is raised."""
        with ExitStack() as stack:
            while self._registered:
                stack.callback(self._device.unregister, self._registered.pop())

    def close(self) -> None:
        """Waits for the copies, then unlocks and frees the memory.

        If an exception comes meanwhile, for example from Ctrl-C, it is raised at the end. If waiting for the
        copies or unlocking the memory fails, the memory stays.
        """
        interrupt = finish_copies(self._device)
        self._unregister()
        self.array = np.empty(0, np.uint8)
        if self.way == _BY_RUNTIME:
            self._device.free_pinned()
        _in_use.discard(self)
        if interrupt is not None:
            raise interrupt
