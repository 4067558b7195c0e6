"""Saved positions of a `TokenLoader`, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagestream.errors import StateMismatchError

STATE_VERSION = 1
_POSITIONS = 1 << 63


def require_state(state: object) -> Mapping[str, Any]:
    """Returns the state, after a check of its type.

    Raises:
        StateMismatchError: `state` is not a mapping.
    """
    if not isinstance(state, Mapping):
        message = f"a state must be a dict from state_dict(), not {state!r}"
        raise StateMismatchError(message)
    return state


def saved_position(state: object, identity: Mapping[str, Any], *, strict: bool) -> int:
    """Returns the number of samples that a stream had handed out when the state was taken.

    Args:
        state: A result of `TokenLoader.state_dict`.
        identity: Settings that must be equal for a position to have the same meaning.
        strict: Whether to reject a state with another identity.

    Raises:
        StateMismatchError: The state has another version, belongs to another stream, or is not a state.

    Examples:
        >>> from pagestream.loading.state import saved_position
        >>> saved_position({"version": 1, "seed": 0, "samples_consumed": 40}, {"seed": 0}, strict=True)
        40
    """
    state = require_state(state)
    if state.get("version") != STATE_VERSION:
        message = f"the state has version {state.get('version')!r}; this release reads {STATE_VERSION}"
        raise StateMismatchError(message)
    if strict and "mixture" in state and "fingerprint" in identity:
        message = (
            "the state is of a Mixture, and this loader reads one corpus. Read Mixture([(tokens, 1)]), and "
            "pass new_mixture=True to go on with this source alone"
        )
        raise StateMismatchError(message)
    wrong = [
        f"{name} is {state.get(name)!r} in the state and {expected!r} here"
        for name, expected in identity.items()
        if state.get(name) != expected
    ]
    if wrong and strict:
        message = (
            f"the state does not belong to this loader: {'; '.join(wrong)}. "
            "Pass strict=False to take its position all the same"
        )
        raise StateMismatchError(message)
    consumed = state.get("samples_consumed")
    if not isinstance(consumed, int) or isinstance(consumed, bool) or not 0 <= consumed < _POSITIONS:
        message = (
            f"samples_consumed is {consumed!r} in the state; it must be an int, 0 or more and below 2^63"
        )
        raise StateMismatchError(message)
    return consumed
