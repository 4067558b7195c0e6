"""Arguments shared by several commands."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

Paths: TypeAlias = Annotated[list[str], typer.Argument(help="Files, folders, indices or Hugging Face ids.")]
All: TypeAlias = Annotated[bool, typer.Option("--all", help="Show every row.")]
Dtype: TypeAlias = Annotated[str | None, typer.Option(help="The type of raw tokens, which do not say it.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def checked_dtype(dtype: str | None) -> str | None:
    """Returns the type.

    Raises:
        ValueError: NumPy has no such type.
    """
    import numpy as np

    try:
        np.dtype(dtype)
    except TypeError as error:
        message = f"--dtype is {dtype!r}; it must be a type of NumPy, such as uint16 or uint32"
        raise ValueError(message) from error
    return dtype
