"""safetensors files and Paddle, with upstream's names. Tensors are copies, made through NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagestream.safetensors import _load, _upstream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pagestream._common.types import Mode, StrPath
    from pagestream.safetensors._open import Backend

__all__ = ["load", "load_file", "save", "save_file"]


def load(data: Any, device: Any = "cpu", *, strict: bool | None = None) -> dict[str, Any]:  # noqa: ANN401
    """Loads all tensors of a safetensors file in memory (bytes, bytearray, memoryview, …).

    Examples:
        >>> from pathlib import Path
        >>> from pagestream.safetensors.paddle import load
        >>> tuple(load(Path("model.safetensors").read_bytes())["bias"].shape)
        (3,)
    """
    return _load.load("paddle", data, strict, device)


def load_file(
    filename: StrPath,
    device: Any = "cpu",  # noqa: ANN401 - a str or an int
    *,
    backend: Backend | None = None,
    mmap_mode: Mode | None = None,
    strict: bool | None = None,
    ahead: int | None = None,
) -> dict[str, Any]:
    """Loads all tensors of a file, in its order. The arguments are the same as for `safe_open`.

    Examples:
        >>> from pagestream.safetensors.paddle import load_file
        >>> tuple(load_file("model.safetensors")["bias"].shape)
        (3,)
    """
    options = {"backend": backend, "mmap_mode": mmap_mode, "strict": strict, "ahead": ahead}
    return _load.load_file("paddle", filename, device, **options)


def save(tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    """Returns these tensors as the bytes of a safetensors file; see `numpy.save`.

    Examples:
        >>> from pagestream.safetensors.paddle import load, load_file, save
        >>> sorted(load(save(load_file("model.safetensors"))))
        ['bias', 'weight']
    """
    return _upstream.save("paddle", dict(tensors), metadata)


def save_file(tensors: Mapping[str, Any], filename: StrPath, metadata: dict[str, str] | None = None) -> None:
    """Saves these tensors to a file; see `numpy.save_file`.

    Examples:
        >>> from pagestream.safetensors.paddle import load_file, save_file
        >>> save_file(load_file("model.safetensors"), "again.safetensors")
        >>> sorted(load_file("again.safetensors"))
        ['bias', 'weight']
    """
    _upstream.save_file("paddle", dict(tensors), filename, metadata)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    return _upstream.attribute("paddle", name)
