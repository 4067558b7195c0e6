"""The entry of a tensor in a header."""

from __future__ import annotations

from dataclasses import dataclass

from pagestream._common.public import set_module


@set_module("pagestream")
@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The entry of a tensor in a header.

    Attributes:
        name: The tensor's name.
        dtype: The element type by its safetensors name, for example ``"BF16"``.
        shape: The dimensions, in elements.
        nbytes: The size in bytes.
        path: The file that contains the tensor.
        offset: The offset of the tensor's bytes in that file.

    Examples:
        >>> from pagestream import open_checkpoint
        >>> open_checkpoint("model.safetensors").info("bias").nbytes
        12
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    path: str
    offset: int
