"""The functions for flax, tensorflow and mlx. Tensors are copied from and to NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from pagestream._common.types import Mode, StrPath
from pagestream.safetensors import _load, _upstream, numpy
from pagestream.safetensors._open import Backend
from pagestream.weights.dtypes import numpy_dtype


class ForeignModule:
    """The functions of upstream's module for a framework. The modules here bind these methods to its names.

    Examples:
        >>> from pagestream.safetensors.flax import load_file
        >>> tuple(load_file("model.safetensors")["bias"].shape)
        (3,)
    """

    def __init__(self, framework: str) -> None:
        self._framework = framework

    def load(self, data: Any, *, strict: bool | None = None) -> dict[str, Any]:  # noqa: ANN401
        """Loads all tensors of a safetensors file in memory (bytes, bytearray, memoryview, …).

        Examples:
            >>> from pathlib import Path
            >>> from pagestream.safetensors.flax import load
            >>> tuple(load(Path("model.safetensors").read_bytes())["bias"].shape)
            (3,)
        """
        return _load.load(self._framework, data, strict)

    def load_file(
        self,
        filename: StrPath,
        *,
        backend: Backend | None = None,
        mmap_mode: Mode | None = None,
        strict: bool | None = None,
        ahead: int | None = None,
    ) -> dict[str, Any]:
        """Loads all tensors of a file, in its order. The arguments are the same as for `safe_open`.

        Examples:
            >>> from pagestream.safetensors.flax import load_file
            >>> tuple(load_file("model.safetensors")["bias"].shape)
            (3,)
        """
        options = {"backend": backend, "mmap_mode": mmap_mode, "strict": strict, "ahead": ahead}
        return _load.load_file(self._framework, filename, **options)

    def save(self, tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> bytes:
        """Returns these tensors as the bytes of a safetensors file; see `numpy.save`.

        Examples:
            >>> from pagestream.safetensors.flax import load, load_file, save
            >>> sorted(load(save(load_file("model.safetensors"))))
            ['bias', 'weight']
        """
        return numpy.save(self._arrays(tensors), metadata)

    def save_file(
        self, tensors: Mapping[str, Any], filename: StrPath, metadata: dict[str, str] | None = None
    ) -> None:
        """Saves these tensors to a file; see `numpy.save_file`.

        Examples:
            >>> from pagestream.safetensors.flax import load_file, save_file
            >>> save_file(load_file("model.safetensors"), "again.safetensors")
            >>> sorted(load_file("again.safetensors"))
            ['bias', 'weight']
        """
        numpy.save_file(self._arrays(tensors), filename, metadata)

    def attribute(self, name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
        """Returns an attribute of upstream's module by its name; see `_upstream.attribute`."""
        return _upstream.attribute(self._framework, name)

    def _arrays(self, tensors: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Returns tensors as arrays, without a copy if the framework allows it."""
        if self._framework == "tensorflow":
            # A tensor without dimensions arrives as a scalar.
            return {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items()}
        if self._framework == "mlx":
            bfloat16, uint16 = (getattr(import_module("mlx.core"), name) for name in ("bfloat16", "uint16"))
            return {
                name: np.asarray(tensor.view(uint16)).view(numpy_dtype("BF16"))
                if tensor.dtype == bfloat16
                else np.asarray(tensor)
                for name, tensor in tensors.items()
            }
        return {name: np.asarray(tensor) for name, tensor in tensors.items()}
