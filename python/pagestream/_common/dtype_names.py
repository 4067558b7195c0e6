"""Names of element types, which NumPy and torch share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    AnyDtype = npt.DTypeLike | torch.dtype
else:  # torch need not be installed
    AnyDtype = npt.DTypeLike


def dtype_name(dtype: object) -> Any:  # noqa: ANN401 - a name, or the argument itself
    """Returns the name of a type, for example ``"int64"`` for ``torch.int64``, ``np.int64`` and ``"i8"``.

    Other values, for example ``"raw"``, are returned unchanged. It does not import torch.
    """
    kind = type(dtype)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        dtype = str(dtype)
    if isinstance(dtype, str):
        dtype = dtype.removeprefix("torch.")
    if dtype is not None:  # NumPy's default type
        with contextlib.suppress(TypeError, ValueError):
            found: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
            return found.name if found.isnative and found.kind in "biufc" else dtype
    return dtype
