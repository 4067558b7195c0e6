"""The forms of a plan: names, a mapping from names to parts, or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import numpy as np

from pagestream.weights.indexing import Index
from pagestream.weights.tensor_info import TensorInfo

# The part of a tensor; None or True for the whole tensor, False to skip it.
Chosen: TypeAlias = Index | bool | None
Plan: TypeAlias = Iterable[str] | Mapping[str, Index | None] | Callable[[TensorInfo], Chosen] | None


def parts(names: list[str], info_of: Callable[[str], TensorInfo], plan: Plan) -> Mapping[str, Index | None]:
    """Returns the names in a plan, and the requested part of each; None for the whole tensor.

    Raises:
        TypeError: `plan` is a str, or contains something other than names.
        ValueError: A name occurs twice.
    """
    if isinstance(plan, (str, bytes)):
        message = f"plan must be names, not one: [{plan!r}]"
        raise TypeError(message)
    if plan is None:
        return dict.fromkeys(names)
    if callable(plan):
        found = ((name, plan(info_of(name))) for name in names)
        # A comparison of NumPy numbers returns NumPy's own bool.
        chosen = ((name, bool(part) if isinstance(part, np.bool_) else part) for name, part in found)
        return {name: None if part is True else part for name, part in chosen if part is not False}
    if isinstance(plan, Mapping):
        _check_names(plan)
        return plan
    given = _listed(plan)
    once = dict.fromkeys(given)
    if len(once) < len(given):
        twice = next(name for name in given if given.count(name) > 1)
        message = f"plan has {twice!r} twice"
        raise ValueError(message)
    return once


def _listed(plan: object) -> list[str]:
    if not isinstance(plan, Iterable):
        message = f"plan must be names, a mapping or a function, not {plan!r}"
        raise TypeError(message)
    given = list(plan)
    _check_names(given)
    return given


def _check_names(names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str):
            message = f"plan must have names of tensors, not {name!r}"
            raise TypeError(message)
