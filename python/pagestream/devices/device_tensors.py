"""torch tensors on a device. Their bytes pass through anonymous memory, never through a file's mapping."""

from __future__ import annotations

import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pagestream._common import environment
from pagestream.devices import constructors, copy_device
from pagestream.devices.cuts import cut
from pagestream.devices.torch_tensors import TorchTensors
from pagestream.devices.transfer import first_threads
from pagestream.errors import SafetensorError
from pagestream.weights import indexing
from pagestream.weights.dtypes import itemsize

if TYPE_CHECKING:
    import numpy.typing as npt

    from pagestream import _native
    from pagestream.devices.copy_device import CopyDevice
    from pagestream.weights.arrays import Align
    from pagestream.weights.indexing import Index, Selection

# One piece is copied to the device while the next piece is read.
PIECE_BYTES = 16 << 20
_BLOCKS = 2
# The driver stages smaller copies itself and returns at once, faster than pieces can be set up:
# https://docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html
LEAST_BYTES = 64 << 10


def tensors_for(
    device: str | int | torch.device | None,
    align: Align = "copy",
    **options: bool,
) -> TorchTensors:
    """Returns the framework for a device. The device is checked when a file is opened.

    Raises:
        SafetensorError: torch does not know the device.
    """
    try:
        found = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError, ValueError) as error:
        message = f"device {device!r} is invalid: {error}"
        raise SafetensorError(message) from error
    return TorchTensors(align, **options) if found.type == "cpu" else DeviceTensors(found, align, **options)


class _Shapes(TorchTensors):
    """Tensors on the meta device, for finding a type and a shape before allocating memory."""

    new_on = torch.device("meta")


class DeviceTensors(TorchTensors):
    """torch tensors on a device other than the CPU, complete when they are returned.

    A driver copies with its locks held. If it touched a mapped page that is not in memory, it would wait for
    the storage, and every other user of the device would wait too. So bytes are first read into anonymous
    memory. For a GPU they are read in pieces: one piece is copied while the next one is read.

    Attributes:
        device: The device.
    """

    plain = None  # type: ignore[assignment]

    def __init__(self, device: torch.device, align: Align = "copy", **options: bool) -> None:
        """Keeps the device."""
        super().__init__(align, **{**options, "copies": True})
        self.device = device
        # Devices that torch counts. A file opens even if they are missing, as in upstream.
        self._is_unchecked = device.type in ("cuda", "mps")
        self._host = TorchTensors(copies=True, raw=self.raw)
        self._shapes = _Shapes()

    def whole_of(self, file: _native.WeightFile, name: str, facts: _native.TensorFacts) -> torch.Tensor:
        """Creates a tensor of a file."""
        dtype, shape = self.described(facts.dtype, facts.shape, facts.nbytes)
        if self.reads_nothing():
            return self.empty(dtype, shape, facts.nbytes)
        self._check_available()
        staged_for = self._staged_for(facts.nbytes)
        if staged_for is None:
            return self._host.whole_of(file, name, facts).to(self.device)  # type: ignore[no-any-return]
        whole = indexing.Selection(0, (facts.nbytes,), (1,))
        return self._sent(staged_for, file.stored(name), dtype, shape, whole, 1)

    def part(self, stored: _native.StoredTensor, index: Index) -> torch.Tensor:
        """Creates a part. Lists and tensors index on the CPU: a bad index on a GPU breaks its context."""
        if indexing.is_advanced(index):
            if not self.reads_nothing():
                self._check_available()
            return self._host.part(stored, index).to(self.device)
        return super().part(stored, index)

    def basic_part(
        self, stored: _native.StoredTensor, dtype: str, shape: tuple[int, ...], index: Index
    ) -> torch.Tensor:
        """Creates a part of a tensor seen as `dtype` and `shape`."""
        found, item_bytes = indexing.select(shape, index), itemsize(dtype)
        nbytes = found.size * item_bytes
        if self.reads_nothing():
            return self.empty(dtype, found.shape, nbytes)
        self._check_available()
        staged_for = self._staged_for(nbytes)
        if staged_for is None:
            return self._host.basic_part(stored, dtype, shape, index).to(self.device)  # type: ignore[no-any-return]
        return self._sent(staged_for, stored, dtype, found.shape, found, item_bytes)

    def reads_nothing(self) -> bool:
        """Returns whether new tensors have no bytes."""
        return self.device.type == "meta" or super().reads_nothing()

    def _check_available(self) -> None:
        """Rejects a GPU that torch does not see, before the first tensor. The error has torch's own type.

        Raises:
            RuntimeError: torch does not see the device.
            AssertionError: torch was built without support for CUDA.
        """
        if not self._is_unchecked:
            return
        try:
            copy_device.check_available(self.device, (self.device.type,))
        except ValueError as error:
            is_built = self.device.type != "cuda" or torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
            raise (RuntimeError if is_built else AssertionError)(str(error)) from None
        self._is_unchecked = False

    def _staged_for(self, nbytes: int) -> CopyDevice | None:
        """Returns the GPU, for copies on the caller's stream, or None if pieces are not worthwhile."""
        if self.device.type != "cuda" or nbytes < LEAST_BYTES:
            return None
        found = copy_device.staged_for(self.device)
        return None if found is None else found.on_current_stream()

    def empty(self, dtype: str, shape: tuple[int, ...], nbytes: int) -> torch.Tensor:
        """Creates an uninitialized tensor."""
        described = self._shapes.over(dtype, shape, nbytes, 0, None)
        return constructors.empty(described.shape, described.dtype, self.device)

    def _sent(
        self,
        device: CopyDevice,
        stored: _native.StoredTensor,
        dtype: str,
        shape: tuple[int, ...],
        selected: Selection,
        item_bytes: int,
    ) -> torch.Tensor:
        """Creates a tensor from the `selected` elements, each of `item_bytes`."""
        nbytes = selected.size * item_bytes
        tensor = self.empty(dtype, shape, nbytes)
        flat = tensor.view(-1).view(torch.uint8)
        # This waits for a read-ahead of this tensor. A read-ahead into anonymous memory returns that memory.
        ahead = stored.view(selected.in_bytes(item_bytes), True, True)  # noqa: FBT003
        if ahead is not None:
            flat.copy_(constructors.from_numpy(np.frombuffer(ahead, np.uint8)))
            return tensor
        threads = environment.threads(None) or first_threads()
        first = 0
        copying: deque[tuple[npt.NDArray[np.uint8], Any]] = deque()
        try:
            for part in cut(selected, PIECE_BYTES // item_bytes):
                if len(copying) < _BLOCKS:
                    block = _block(device, min(nbytes, PIECE_BYTES))
                else:
                    block, done = copying.popleft()
                    done.synchronize()
                piece = block[: part.size * item_bytes]
                stored.read_selection(part.in_bytes(item_bytes), piece, threads)
                device.copy_into(flat[first : first + piece.size], piece)
                copying.append((block, device.record()))
                first += piece.size
        finally:
            # As in upstream, the bytes are available to every stream.
            if (interrupt := copy_device.finish_copies(device)) is not None:
                raise interrupt
        return tensor


def _block(device: CopyDevice, nbytes: int) -> npt.NDArray[np.uint8]:
    """Returns staging memory, page-locked if possible. torch caches page-locked memory for later calls."""
    try:
        return device.allocate_pinned(nbytes)
    except RuntimeError as error:
        # Containers limit locked memory. A copy from pageable memory has finished reading it when the call
        # returns.
        message = f"{nbytes} bytes cannot be page-locked ({error}): copies wait for each other"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return np.empty(nbytes, np.uint8)
