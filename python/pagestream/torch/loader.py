"""`TokenLoader` for PyTorch: batches as tensors, on the CPU or ahead of time on a GPU."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pagestream.batches import Batch, PackedBatch
from pagestream.loader import TokenLoader as NumpyTokenLoader

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["TokenLoader"]

# Batches that are on their way to the device while the consumer works on another.
_IN_FLIGHT = 2
# Types of files that the device can widen by itself: without loss, and by a mask where they are unsigned
# and PyTorch's kernels for unsigned types are incomplete.
_SIGNED = {"uint16": ("i2", 0xFFFF), "uint32": ("i4", 0xFFFF_FFFF)}
_WIDENED_ON_DEVICE = {
    "int64": {"uint8", "int8", "uint16", "int16", "uint32", "int32"},
    "int32": {"uint8", "int8", "uint16", "int16"},
}


class TokenLoader(NumpyTokenLoader):
    """`pagestream.TokenLoader` whose batches are tensors on a device.

    On the CPU tensors share their memory with the loader's buffers. For a GPU batches stay in the type of
    the files until they are there: the buffers are pinned, copies run on a stream of their own while the
    consumer works, and the device widens them. A buffer is used again only after an event says that its
    copy is done.

    Args:
        tokens: As for `pagestream.TokenLoader`, as are all other arguments.
        device: Where the tensors are to be.
        **arguments: The others.

    Raises:
        ValueError: An argument is out of range, or the corpus is shorter than one window.
        OSError: A file cannot be opened.

    Example:
        >>> from pagestream.torch import TokenLoader
        >>> with TokenLoader("tokens.bin", sequence_length=8, batch_size=2, order="sequential") as loader:
        ...     x, y = next(loader)
        >>> x[1], x.dtype
        (tensor([ 8,  9, 10, 11, 12, 13, 14, 15]), torch.int64)
    """

    def __init__(self, tokens: Any, *, device: torch.device | str = "cpu", **arguments: Any) -> None:  # noqa: ANN401 - as the base class
        """Starts reading ahead."""
        self.device = torch.device(device)
        self._on_device = self.device.type != "cpu"
        self._wanted: torch.dtype | None = None
        # (batch on the device, position after it, event, what keeps the host's copy)
        self._flight: deque[tuple[Any, int, Any, Any]] = deque()
        # Events and what keeps buffers that were handed over but may still be read.
        self._read: deque[tuple[Any, Any]] = deque()
        self._pinned: set[int] = set()
        self._stream: Any = None
        if self._on_device:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        super().__init__(tokens, **arguments)

    def _start(self) -> Any:  # noqa: ANN401 - the native pipeline
        dtype = self._settings["dtype"]
        if self._on_device and self._corpora[0].dtype.name in _WIDENED_ON_DEVICE.get(dtype, ()):
            self._wanted = getattr(torch, dtype)
            self._settings["dtype"] = "raw"
            self._dtype = self._corpora[0].dtype
            self._position_dtype = np.dtype("int32")
        return super()._start()

    def __next__(self) -> Any:  # noqa: ANN401 - a Batch, a PackedBatch or x alone
        """The next batch.

        Raises:
            StopIteration: The epochs are over.
            MappedReadError: A file was cut or its storage failed.
            FileChangedError: A file was rewritten or replaced since it was opened.
        """
        if not self._on_device:
            return _mapped(super().__next__(), torch.from_numpy, torch.from_numpy)
        while len(self._flight) < _IN_FLIGHT:
            try:
                found = self._take()
            except Exception:
                if self._flight:
                    break  # Those that are under way come first; then it is raised.
                raise
            if found is None:
                break
            self._send(*found)
        if not self._flight:
            raise StopIteration
        batch, position, event, host = self._flight.popleft()
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)
        for tensor in _tensors(batch):
            tensor.record_stream(current)
        # The buffer is kept from the pool until it has been read.
        self._read.append((event, host))
        while self._read and self._read[0][0].query():
            self._read.popleft()
        self._consumed = position
        return batch

    def _send(self, host: Any, position: int) -> None:  # noqa: ANN401 - a batch of arrays
        """Starts the copy of a batch to the device."""
        first = host if not isinstance(host, tuple) else host[0]
        self._pin(first)
        with torch.cuda.stream(self._stream):
            batch = _mapped(host, self._widened, self._copied)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        self._flight.append((batch, position, event, host))

    def _copied(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _widened(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Copies tokens or position ids, and widens them where the type asked for is another."""
        if self._wanted is None:
            return self._copied(array)
        signed, mask = _SIGNED.get(array.dtype.name, (None, 0))
        if signed is None:
            return self._copied(array).to(self._wanted)
        return self._copied(array.view(signed)).to(self._wanted).bitwise_and_(mask)

    def _pin(self, array: npt.NDArray[Any]) -> None:
        """Page-locks the buffer that an array begins, once: the loader keeps its buffers."""
        address = array.__array_interface__["data"][0]
        if address in self._pinned or self._pipeline is None:
            return
        nbytes = self._pipeline.layout[-1]
        _cudart_call("cudaHostRegister", address, nbytes, 0)
        self._pinned.add(address)

    def _stop(self) -> None:
        if self._on_device:
            self._stream.synchronize()
            self._read.clear()
            for address in self._pinned:
                _cudart_call("cudaHostUnregister", address)
            self._pinned.clear()
        super()._stop()

    def _next_position(self) -> int:
        return self._flight[-1][1] if self._flight else super()._next_position()

    def _forget(self) -> None:
        self._flight.clear()


def _cudart_call(name: str, *arguments: int) -> None:
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(getattr(runtime, name)(*arguments))


def _mapped(batch: Any, convert: Any, convert_bounds: Any) -> Any:  # noqa: ANN401 - any of the kinds of batch
    """The batch with its arrays converted; ``cu_seqlens`` stays int32."""
    if isinstance(batch, PackedBatch):
        x, y, bounds, longest, positions = batch
        y = None if y is None else convert(y)
        return PackedBatch(convert(x), y, convert_bounds(bounds), longest, convert(positions))
    if isinstance(batch, Batch):
        return Batch(convert(batch.x), convert(batch.y))
    return convert(batch)


def _tensors(batch: Any) -> list[torch.Tensor]:  # noqa: ANN401 - any of the kinds of batch
    items = batch if isinstance(batch, tuple) else (batch,)
    return [item for item in items if isinstance(item, torch.Tensor)]
