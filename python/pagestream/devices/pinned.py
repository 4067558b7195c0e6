"""Host memory from which a device copies, page-locked in the first of three ways that the driver allows."""

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
# Registering 2 GiB at once fails on some drivers; so much does not.
PIECE_BYTES = 256 << 20
_BY_RUNTIME = "allocated by the runtime"
# Memory that the device may read. `close` alone frees it: an exception may come before that is called.
_in_use: set[PinnedMemory] = set()
# The copies and the registrations are the parent's.
os.register_at_fork(after_in_child=_in_use.clear)


class PinnedMemory:
    """Staging for copies to a device.

    `pin` allocates it, and page-locks it by the first way that works: one registration; registrations of
    pieces; memory that the runtime allocates. Memory that is not page-locked serves as well, and copies from
    it wait for each other.

    It stays until `close` has waited for the copies, whatever else ends.

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
        """Allocates the memory, by so many threads, and page-locks it, and reports how."""
        _in_use.add(self)
        # Shared: of private memory a fork would leave the pages that the device knows to the child.
        buffer = StagingBuffer(nbytes, shared=True)
        self.array = np.frombuffer(buffer, np.uint8)
        self._span_bytes = nbytes
        if not self._device.is_cuda:
            return
        # The driver would ask for one page after another (benches/gpu/ablation.py).
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
        """Registers the memory in spans, all or none; returns CUDA's error, or 0."""
        address = self.array.__array_interface__["data"][0]
        for first in range(0, self.array.size, span_bytes):
            # Noted first: an interrupt in between leaves an address too many, not a registration.
            self._registered.append(address + first)
            failed = self._device.register(address + first, min(span_bytes, self.array.size - first))
            if failed:
                self._registered.pop()
                self._unregister()
                return failed
        return 0

    def spans(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Cuts a range where a registration ends: no copy may cross two of them."""
        while first < end:
            until = min(end, first - first % self._span_bytes + self._span_bytes)
            yield first, until
            first = until

    def _unregister(self) -> None:
        """Ends all registrations, also where one fails; the last failure is raised."""
        with ExitStack() as stack:
            while self._registered:
                stack.callback(self._device.unregister, self._registered.pop())

    def close(self) -> None:
        """Waits for the copies, then unlocks and frees the memory.

        An exception that comes meanwhile, as by Ctrl-C, is raised at the end. If the copies cannot be waited
        for, or the memory cannot be unlocked, it stays.
        """
        interrupt = finish_copies(self._device)
        self._unregister()
        self.array = np.empty(0, np.uint8)
        if self.way == _BY_RUNTIME:
            self._device.free_pinned()
        _in_use.discard(self)
        if interrupt is not None:
            raise interrupt
