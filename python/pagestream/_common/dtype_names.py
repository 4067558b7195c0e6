"""Names of element types, which NumPy and torch share."""

from __future__ import annotations

from typing import Any


def dtype_name(dtype: object) -> Any:  # noqa: ANN401 - a name, or the argument itself
    """Returns ``"int64"`` for ``torch.int64``, and other values unchanged. It does not import torch."""
    kind = type(dtype)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return str(dtype).removeprefix("torch.")
    return dtype
