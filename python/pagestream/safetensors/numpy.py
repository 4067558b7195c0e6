"""safetensors files and NumPy, by upstream's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagestream.safetensors._open import Backend, safe_open
from pagestream.safetensors._upstream import writer

if TYPE_CHECKING:
    import numpy.typing as npt

    from pagestream._environment import Mode
    from pagestream.mapping import StrPath

__all__ = ["load_file", "save", "save_file"]


def load_file(
    filename: StrPath,
    *,
    backend: Backend | None = None,
    mmap_mode: Mode | None = None,
    strict: bool = True,
    copy: bool = False,
) -> dict[str, npt.NDArray[Any]]:
    """All tensors of a file as a dict of arrays, in the order of the file.

    Nothing is read until it is used, unless ``copy=True`` or the file cannot be mapped.

    Args:
        filename: The file.
        backend: See `safe_open`.
        mmap_mode: See `safe_open`.
        strict: See `safe_open`.
        copy: See `safe_open`.

    Raises:
        OSError: The file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: Not a valid safetensors file.

    Example:
        >>> from pagestream.safetensors.numpy import load_file
        >>> load_file("model.safetensors")["bias"]
        array([0., 0., 0.], dtype=float32)
    """
    options = {"backend": backend, "mmap_mode": mmap_mode, "strict": strict, "copy": copy}
    with safe_open(filename, "np", **options) as file:  # type: ignore[arg-type]
        return {name: file.get_tensor(name) for name in file.offset_keys()}


save = writer("safetensors.numpy", "save")
save_file = writer("safetensors.numpy", "save_file")
