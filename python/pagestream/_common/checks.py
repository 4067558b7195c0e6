"""Checks of arguments that several classes share."""

from __future__ import annotations

import operator
import reprlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import SupportsIndex


def at_least(least: int, name: str, value: object) -> int:
    """Returns the value, if it is an integer and in range."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        message = f"{name} must be an integer, not {value!r}"
        raise TypeError(message)
    number = operator.index(value)
    if not least <= number < 1 << 63:
        limit = f"at least {least}" if number < least else "below 2^63"
        message = f"{name} must be {limit}, not {number}"
        raise ValueError(message)
    return number


def element(index: SupportsIndex, length: int, what: str) -> int:
    """Returns the index of an element of a sequence. A negative index counts from the end."""
    if not hasattr(index, "__index__"):
        message = f"{what}s are picked by integers, not by {reprlib.repr(index)}"
        raise TypeError(message)
    try:
        return range(length)[index]
    except IndexError:
        message = f"{what} {operator.index(index)} of {length}"
        raise IndexError(message) from None


def listed(words: tuple[str, ...]) -> str:
    """Returns words in the form of a sentence: ``"a", "b" or "c"``."""
    *most, last = (f'"{word}"' for word in words)
    return f"{', '.join(most)} or {last}" if most else last


def one_of(name: str, value: object, words: tuple[str, ...]) -> None:
    """Raises unless the value is one of the words."""
    if not isinstance(value, str) or value not in words:
        message = f"{name} must be {listed(words)}, not {value!r}"
        raise (ValueError if isinstance(value, str) else TypeError)(message)


def check_bool(name: str, value: object) -> bool:
    """Returns the value, if it is a bool."""
    if not isinstance(value, bool):
        message = f"{name} must be True or False, not {value!r}"
        raise TypeError(message)
    return value


def only_with(name: str, value: object, *, needed: bool, needs: str) -> None:
    """Rejects an argument that would have no effect."""
    if value is not None and not needed:
        message = f"{name}={value!r} has no effect without {needs}"
        raise ValueError(message)
