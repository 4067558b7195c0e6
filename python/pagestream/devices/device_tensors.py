"""torch's tensors on a device: their bytes go through memory that no file is mapped to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pagestream.devices.cuts import cut
from pagestream.devices.torch_tensors import TorchTensors
from pagestream.devices.transfer import first_threads
from pagestream.errors import SafetensorError
from pagestream.weights import indexing
from pagestream.weights.dtypes import itemsize

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pagestream import _native
    from pagestream.weights.arrays import Align, Filler
    from pagestream.weights.indexing import Index, Selection

# What is copied to the device while the next piece is read.
PIECE_BYTES = 16 << 20


def torch_tensors(
    device: str | int | torch.device | None,
    align: Align = "copy",
    **options: bool,
) -> TorchTensors:
    """Returns the object that makes tensors on a device. It is checked when a file is opened.

    Raises:
        SafetensorError: torch knows no such device.
    """
    try:
        found = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError, ValueError) as error:
        message = f"device {device!r} is invalid: {error}"
        raise SafetensorError(message) from error
    return TorchTensors(align, **options) if found.type == "cpu" else DeviceTensors(found, align, **options)


class DeviceTensors(TorchTensors):
    """torch's tensors on another device than the CPU.

    Attributes:
        device: The device.

    A device's driver copies with its locks held. Of a mapped page that is not in memory it would wait for the
    storage, and all others that use the device with it.
    """

    # Memory on the device is no matter of the file: where there is none, torch says so in its own words.
    new_on = "meta"

    def __init__(self, device: torch.device, align: Align = "copy", **options: bool) -> None:
        """Keeps the device."""
        super().__init__(align, **{**options, "copies": True})
        self.device = device
        self._is_pinned = device.type == "cuda"

    def make(
        self,
        dtype: str,
        shape: tuple[int, ...],
        nbytes: int,
        offset: int,
        buffer: Buffer | None,
        fill: Filler | None = None,  # noqa: ARG002 - the bytes are in the buffer
    ) -> torch.Tensor:
        """Makes a tensor of bytes that are in memory."""
        if not nbytes:
            return self._empty(dtype, shape, 0)
        return self.over(dtype, shape, nbytes, offset, buffer).to(self.device)

    def _empty(self, dtype: str, shape: tuple[int, ...], nbytes: int) -> torch.Tensor:
        """Makes a tensor as yet without content."""
        return torch.empty_like(self.over(dtype, shape, nbytes, 0, None), device=self.device)

    def whole_of(self, file: _native.WeightFile, name: str, facts: _native.TensorFacts) -> torch.Tensor:
        """Makes one tensor of a file."""
        dtype, shape = self.described(facts.dtype, facts.shape, facts.nbytes)
        whole = indexing.Selection(0, (facts.nbytes,), (1,))
        return self._sent(file.stored(name), dtype, shape, whole, 1)

    def basic_part(
        self, stored: _native.StoredTensor, dtype: str, shape: tuple[int, ...], index: Index
    ) -> torch.Tensor:
        """Makes a part of a tensor seen as `dtype` and `shape`."""
        found = indexing.select(shape, index)
        return self._sent(stored, dtype, found.shape, found, itemsize(dtype))

    def _sent(
        self,
        stored: _native.StoredTensor,
        dtype: str,
        shape: tuple[int, ...],
        selected: Selection,
        item_bytes: int,
    ) -> torch.Tensor:
        """Makes a tensor of `selected` elements, each of so many bytes."""
        nbytes = selected.size * item_bytes
        if not nbytes or self.device.type == "meta":
            return self._empty(dtype, shape, nbytes)
        # Waits for what is being read ahead; where that is memory of its own, this is it.
        ahead = stored.view(selected.in_bytes(item_bytes), True, True)  # noqa: FBT003
        tensor = self._empty(dtype, shape, nbytes)
        flat, first = tensor.view(-1).view(torch.uint8), 0
        if ahead is not None:
            copy_in(flat, torch.frombuffer(ahead, dtype=torch.uint8))
            return tensor
        for part in cut(selected, PIECE_BYTES // item_bytes):
            memory = _memory(part.size * item_bytes, is_pinned=self._is_pinned)
            stored.read_selection(part.in_bytes(item_bytes), memory.numpy(), first_threads())
            copy_in(flat[first : first + memory.numel()], memory)
            first += memory.numel()
        return tensor


def copy_in(target: torch.Tensor, memory: torch.Tensor) -> None:
    """Copies memory to a device, or queues the copy where the memory is page-locked."""
    target.copy_(memory, non_blocking=memory.is_pinned())


def _memory(nbytes: int, *, is_pinned: bool) -> torch.Tensor:
    """Returns memory from which a device copies, page-locked if that is asked for and can be.

    torch keeps page-locked memory for later calls, and gives none out while a copy from it is under way.
    """
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)
    except RuntimeError:
        # Containers limit locked memory. A copy from other memory has read it when the call returns.
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
