"""safetensors files and PyTorch, with upstream's names. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pagestream._common.keywords import advises
from pagestream._common.types import Mode, StrPath
from pagestream.devices import staged_file
from pagestream.safetensors import _defaults, _load, _upstream
from pagestream.safetensors._open import Backend, mode_of

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    # Helpers of upstream's writers that programs import, for example `storage_ptr` and
    # `_find_shared_tensors`.
    return _upstream.attribute("torch", name)


@advises("safetensors.torch.load_file")
def load_file(
    filename: StrPath,
    device: str | int | torch.device | None = "cpu",
    *,
    backend: Backend | None = None,
    mmap_mode: Mode | None = None,
    strict: bool | None = None,
    copy: bool | None = None,
    raw: bool = False,
    ahead: int | None = None,
) -> dict[str, torch.Tensor]:
    """Loads all tensors of a file as a dict of tensors, in the order of the file.

    On the CPU, a tensor is read on first use, unless ``copy=True`` or the file cannot be mapped. `safe_open`
    explains the consequences for a file that changes meanwhile. For a GPU, several threads read files of 64
    MiB and more, as in `pagestream.torch.stream_checkpoint`, unless `raw` is given, or read-ahead is limited
    or off. Other files are read as by `safe_open`.

    Args:
        filename: The file.
        device: The device for the tensors.
        backend: See `safe_open`.
        mmap_mode: See `safe_open`.
        strict: See `safe_open`.
        copy: See `safe_open`.
        raw: See `safe_open`.
        ahead: See `safe_open`. A file that is read ahead is in memory when this function returns.

    Raises:
        OSError: The file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: Not a valid safetensors file, or an element type that torch lacks.
        MappedReadError: The file was truncated while it was read ahead or copied; or, for a device, with
            ``copy=True`` or in ``"read"`` mode, its storage failed.
        FileChangedError: The file was rewritten while it was read ahead or copied.

    Examples:
        >>> from pagestream.safetensors.torch import load_file
        >>> load_file("model.safetensors")["bias"]
        tensor([0., 0., 0.])
    """
    copy = _defaults.copies(copy)
    if not raw and _defaults.ahead_bytes(ahead) is None:
        mode, is_strict = mode_of(backend, mmap_mode), _defaults.strictness(strict)
        if (found := staged_file.load(filename, device, mode, is_strict)) is not None:
            return found
    options = {"backend": backend, "mmap_mode": mmap_mode, "strict": strict, "copy": copy, "raw": raw}
    return _load.load_file("torch", filename, device, ahead=ahead, **options)


def load(data: Any, *, strict: bool | None = None) -> dict[str, torch.Tensor]:  # noqa: ANN401
    """Loads all tensors of a file in memory, as CPU tensors with their own memory.

    Args:
        data: The file: bytes, bytearray, memoryview, or anything else with the buffer protocol.
        strict: See `safe_open`.

    Raises:
        SafetensorError: Not a valid safetensors file, or an element type that torch lacks.

    Examples:
        >>> from pagestream.safetensors.torch import load, save
        >>> load(save({"a": torch.arange(3)}))["a"]
        tensor([0, 1, 2])
    """
    return _load.load("torch", data, strict)


def load_model(
    model: torch.nn.Module,
    filename: StrPath,
    strict: bool = True,  # noqa: FBT001, FBT002 - upstream's signature
    device: str | int | torch.device | None = "cpu",
    *,
    backend: Backend | None = None,
    mmap_mode: Mode | None = None,
) -> tuple[set[str], list[str]]:
    """Loads a file from `save_model` into a model, whose tensors may share memory.

    Args:
        model: The model.
        filename: The file.
        strict: Whether missing or unexpected names are an error.
        device: Device on which the tensors are loaded before they are copied to the model.
        backend: See `safe_open`.
        mmap_mode: See `safe_open`.

    Returns:
        The names that only the model has, and the names that only the file has.

    Raises:
        OSError: The file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: Not a valid safetensors file.
        RuntimeError: Shapes differ; or, with `strict`, names are missing or unexpected.

    Examples:
        >>> from pagestream.safetensors.torch import load_model, save_model
        >>> layer = torch.nn.Linear(2, 1)
        >>> save_model(layer, "layer.safetensors")
        >>> load_model(torch.nn.Linear(2, 1), "layer.safetensors")
        (set(), [])
    """
    tensors = load_file(filename, device, backend=backend, mmap_mode=mmap_mode)
    # If several tensors share memory, the file contains only one of them. Its name is the one to keep.
    remove_duplicates = _upstream.module("torch")._remove_duplicate_names  # noqa: SLF001 - others use it too
    duplicates = remove_duplicates(model.state_dict(), preferred_names=tensors.keys())
    found = model.load_state_dict(tensors, strict=False)
    missing, unexpected = set(found.missing_keys), list(found.unexpected_keys)
    for name in (name for group in duplicates.values() for name in group):
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                listed = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"    {what} key(s) in state_dict: {listed}")
        raise RuntimeError("\n".join(lines))
    return missing, unexpected


def save(tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Returns a safetensors file of these tensors, as bytes.

    Args:
        tensors: The tensors. They must be dense and contiguous, and must not share memory.
        metadata: The contents of ``__metadata__``.

    Raises:
        SafetensorError: A reserved name.
        ValueError: A tensor is sparse or not contiguous.
        RuntimeError: Tensors share memory.

    Examples:
        >>> from pagestream.safetensors.torch import load, save
        >>> sorted(load(save({"a": torch.zeros(1), "b": torch.ones(1)})))
        ['a', 'b']
    """
    return _upstream.save("torch", tensors, metadata)


def save_file(
    tensors: Mapping[str, torch.Tensor], filename: StrPath, metadata: dict[str, str] | None = None
) -> None:
    """Saves these tensors to a file.

    The finished file replaces an old one, so tensors loaded from the old file keep their values. It takes
    over the old file's mode, owner and extended attributes; without an old file, its mode follows the umask.
    A symbolic link stays, and its target is replaced. If a rename is impossible, for example over a mount
    point, the old file is overwritten, unless this process still has tensors of it: then an error is raised.

    Args:
        tensors: As for `save`.
        filename: The file to write.
        metadata: As for `save`.

    Raises:
        SafetensorError: As for `save`; or the file cannot be written.
        ValueError: As for `save`.
        RuntimeError: As for `save`.

    Examples:
        >>> from pagestream.safetensors.torch import load_file, save_file
        >>> save_file({"a": torch.arange(3)}, "a.safetensors")
        >>> load_file("a.safetensors")["a"]
        tensor([0, 1, 2])
    """
    _upstream.save_file("torch", tensors, filename, metadata)


def save_model(
    model: torch.nn.Module,
    filename: StrPath,
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,  # noqa: FBT001, FBT002 - upstream's signature
) -> None:
    """Saves a model. Of tensors that share memory, it saves only one.

    Args:
        model: The model.
        filename: The file to write; see `save_file`.
        metadata: The contents of ``__metadata__``, besides the omitted names.
        force_contiguous: Whether to copy tensors that are not contiguous, instead of raising an error.

    Raises:
        SafetensorError: As for `save_file`.
        ValueError: A tensor is not contiguous, and `force_contiguous` is False.
        RuntimeError: Tensors share memory, and none of them covers all of it.

    Examples:
        >>> from pagestream.safetensors.torch import load_file, save_model
        >>> save_model(torch.nn.Linear(2, 1), "layer.safetensors")
        >>> sorted(load_file("layer.safetensors"))
        ['bias', 'weight']
    """
    _upstream.check_names(model.state_dict())
    # Upstream's code adds to this dict.
    metadata = None if metadata is None else dict(metadata)
    writer = _upstream.module("torch").save_model
    _upstream.write(lambda path: writer(model, path, metadata, force_contiguous), filename)
