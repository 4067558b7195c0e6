"""Loads all tensors of a file to a GPU through staging."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import torch

from pagestream._common import environment
from pagestream._common.paths import expanded
from pagestream.devices import constructors, copy_device
from pagestream.devices.planned import cast_to, planned
from pagestream.devices.transfer import transferred
from pagestream.weights.checkpoint import native_files, open_checkpoint

if TYPE_CHECKING:
    from pagestream._common.types import Mode, StrPath

# For fewer bytes, page-locking the staging takes as much time as it saves.
LEAST_BYTES = 64 << 20


def load(
    filename: StrPath,
    device: str | int | torch.device | None,
    mmap_mode: Mode,
    strict: bool,  # noqa: FBT001
) -> dict[str, torch.Tensor] | None:
    """Loads a file. Returns None if another way is faster, or the device has no staging.

    Raises:
        OSError: The file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: Not a valid safetensors file, or an element type that torch lacks.
        MappedReadError: The file was truncated, or its storage failed.
        FileChangedError: The file was rewritten meanwhile.
    """
    staged_for = None if constructors.makes_fakes() else _gpu(device)
    if staged_for is None or not _is_large(filename):
        return None
    memory_bytes, threads = environment.memory_bytes(None), environment.threads(None)
    with open_checkpoint([filename], mmap_mode=mmap_mode, strict=strict) as weights:
        files, wanted = native_files(weights), planned(weights, None, "file")
        pairs = transferred(files, wanted, staged_for, cast_to(None), memory_bytes, threads, "pread")
        with closing(pairs):
            return {each.info.name: _alone(tensor) for each, tensor in pairs}


def _is_large(filename: StrPath) -> bool:
    try:
        return os.stat(expanded(filename)).st_size >= LEAST_BYTES
    except (OSError, TypeError, ValueError):
        return False  # `safe_open` reports the problem


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with its own memory, because programs save and resize loaded tensors."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _gpu(device: str | int | torch.device | None) -> copy_device.CopyDevice | None:
    try:
        found = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError, ValueError):
        return None
    is_there = found.type == "cuda" and (found.index or 0) < torch.cuda.device_count()
    return copy_device.staged_for(found) if is_there else None
