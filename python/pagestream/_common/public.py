"""The public view of a module: `set_module` for its names, `names_of` for `dir`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, get_type_hints

Thing = TypeVar("Thing", bound=Callable[..., object])


def set_module(name: str) -> Callable[[Thing], Thing]:
    """Returns a decorator that sets the ``__module__`` of a class or function, as in NumPy.

    Error messages, ``repr``, ``help`` and pickles then name ``pagestream.MappedFile``, and not the file that
    defines it.
    """

    def decorate(thing: Thing) -> Thing:
        # Strings in annotations belong to the present module. typing.get_type_hints of a class, and pydantic,
        # would evaluate them in the new one.
        if "__annotations__" in vars(thing) or not isinstance(thing, type):
            hints = get_type_hints(thing, include_extras=True)
            thing.__annotations__ = {each: hints[each] for each in thing.__annotations__}
        thing.__module__ = name
        return thing

    return decorate


def names_of(namespace: Mapping[str, object], names: Iterable[str]) -> list[str]:
    """Returns the names for ``dir``: the public names, and Python's own, for example ``__file__``."""
    return sorted({*names, *(name for name in namespace if name.startswith("__"))})
