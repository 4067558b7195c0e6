"""Copies from host memory to a device: a side stream, events, page-locking."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import torch

from pagestream.devices import constructors

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import numpy as np
    import numpy.typing as npt


def check_available(device: torch.device, kinds: tuple[str, ...]) -> None:
    """Rejects a device of another kind, or a GPU that torch does not see.

    Raises:
        ValueError: The message counts the devices that torch sees.
    """
    if device.type not in kinds:
        *most, last = (f'"{kind}"' for kind in kinds)
        message = f"device must be {', '.join(most)} or {last}, not '{device}'"
        raise ValueError(message)
    count = 1
    if device.type == "cuda":
        count = torch.cuda.device_count()
    elif device.type == "mps":
        count = int(torch.backends.mps.is_available())
    if (device.index or 0) < count:
        return
    seen = f"{count or 'no'} {device.type} device{'' if count == 1 else 's'}"
    message = f"device '{device}' is not available: torch {torch.__version__} sees {seen}"
    if not count:
        message += '; use device="cpu", or find the reason with `python -m torch.utils.collect_env`'
    raise ValueError(message)


def shares_memory(device: torch.device) -> bool:
    """Returns whether a device works in host memory: the CPU, Apple's GPUs, integrated GPUs."""
    if device.type == "cuda":
        return bool(torch.cuda.get_device_properties(device).is_integrated)
    return device.type in ("cpu", "mps")


# One stream per device: memory from one load on it is available for the next load.
_side_streams: dict[torch.device, torch.cuda.Stream] = {}


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _side_streams:
        _side_streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _side_streams[device]


class CopyDevice:
    """Copies to a CUDA device on a side stream, one per device. ``"cpu"`` uses the same code path.

    Args:
        device: The device. ``"cuda"`` without an index means the current device, which is determined once.

    Raises:
        ValueError: The device is neither ``"cpu"`` nor a GPU that PyTorch finds.
    """

    def __init__(self, device: torch.device) -> None:
        check_available(device, ("cpu", "cuda"))
        self.is_cuda = device.type == "cuda"
        if str(device) == "cuda":
            # The current device may change before the consumer waits for a batch.
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = device
        self._module: Any = torch.cuda if self.is_cuda else torch.cpu
        self._stream: Any = _side_stream(device) if self.is_cuda else torch.cpu.Stream()

    def on_current_stream(self) -> CopyDevice:
        """Returns the same device, with copies on the caller's current stream."""
        found = copy.copy(self)
        found._stream = self._module.current_stream(self.device)  # noqa: SLF001 - its own
        return found

    def stream(self) -> AbstractContextManager[Any]:
        """Returns a context in which copies and kernels go to the side stream."""
        return self._module.stream(self._stream)  # type: ignore[no-any-return]

    def copy(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        """Queues the copy of an array. The array must not change until an event recorded later is done."""
        return constructors.from_numpy(array).to(self.device, non_blocking=True, copy=True)

    def empty(self, nbytes: int) -> torch.Tensor:
        """Returns uninitialized bytes on the device."""
        return constructors.empty((nbytes,), torch.uint8, self.device)

    def copy_into(self, target: torch.Tensor, array: npt.NDArray[np.uint8]) -> None:
        """Queues the copy of an array to bytes on the device; see `copy`."""
        target.copy_(constructors.from_numpy(array), non_blocking=True)

    def record(self) -> Any:  # noqa: ANN401 - an event, with `query` and `synchronize`
        """Returns an event that is done once all work queued so far is done."""
        event = self._module.Event()
        event.record(self._stream)
        return event

    def hand_over(self, tensors: tuple[torch.Tensor, ...], done: Any) -> None:  # noqa: ANN401 - an event
        """Makes the caller's stream wait for an event, and keeps the tensors' memory for that stream."""
        current = self._module.current_stream(self.device)
        current.wait_event(done)
        if self.is_cuda:
            for tensor in tensors:
                tensor.record_stream(current)

    def synchronize(self) -> None:
        """Waits until all queued work is done."""
        if self.is_cuda:
            self._stream.synchronize()

    def register(self, address: int, nbytes: int) -> int:
        """Page-locks host memory, so that copies from it need not wait. Returns CUDA's error, or 0."""
        with torch.cuda.device(self.device):
            failed = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0))  # type: ignore[no-untyped-call]
            if failed:
                # The next kernel's check would report the error as its own.
                with contextlib.suppress(RuntimeError):
                    constructors.empty((1,), torch.uint8, self.device).zero_()
        return failed

    def allocate_pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Returns host memory that the CUDA runtime has page-locked.

        Raises:
            RuntimeError: The runtime cannot page-lock that much.
        """
        with torch.cuda.device(self.device):
            return constructors.empty((nbytes,), torch.uint8, constructors.CPU, pin_memory=True).numpy()

    def free_pinned(self) -> None:
        """Makes the runtime release unused page-locked memory, if torch supports this."""
        # Up to release 2.11 at least, torch has it only under a private name, or not at all.
        public = getattr(getattr(torch, "accelerator", None), "empty_host_cache", None)
        if free := public or getattr(torch._C, "_host_emptyCache", None):  # noqa: SLF001
            free()

    def unregister(self, address: int) -> None:
        """Ends the page-locking of host memory that is no longer read."""
        with torch.cuda.device(self.device):
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]


def finish_copies(device: CopyDevice) -> BaseException | None:
    """Waits until a device has done all copies, even if an exception such as Ctrl-C ends the first wait.

    Returns:
        That exception, for the caller to raise once the memory is free.

    Raises:
        BaseException: The second wait has failed as well. Copies may be in progress, so the memory must stay.
    """
    try:
        device.synchronize()
    except BaseException as error:  # noqa: BLE001 - returned
        device.synchronize()
        return error
    return None


def staged_for(device: torch.device) -> CopyDevice | None:
    """Returns the device that needs staging for its tensors, or None if it works in host memory."""
    return None if shares_memory(device) else CopyDevice(device)
