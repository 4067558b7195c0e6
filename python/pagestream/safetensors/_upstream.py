"""Upstream's own package, even while its name leads to ours: its code writes files.

`install` (see `_install`) puts ours under upstream's name. Only this module knows where upstream's code is
then. Functions here guard against open defects of that code.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pagestream._common.locks import ForkSafeLock
from pagestream.errors import SafetensorError
from pagestream.safetensors import _saving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType

    from pagestream._common.types import StrPath

NAME = "safetensors"

# Whether our modules are under upstream's names, and the upstream modules that they replaced.
replaced = False
taken: dict[str, ModuleType] = {}
lock = ForkSafeLock()
# Upstream's modules that were first needed while ours were under their names.
_private: dict[str, ModuleType] = {}


def module(part: str | None = None) -> ModuleType:
    """Returns upstream's ``safetensors``, or ``safetensors.<part>``.

    Raises:
        ImportError: It, or a package that it needs, is not installed.
    """
    name = f"{NAME}.{part}" if part else NAME
    with lock.lock:
        if name in taken:
            return taken[name]
        if not (replaced or _is_ours(sys.modules.get(NAME))):
            return _imported(name)
        if name not in _private:
            _private[name] = _load(name) if part or replaced else _load_behind_ours()
        return _private[name]


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise (_missing(name) if error.name == NAME else error) from error


def _is_ours(module: ModuleType | None) -> bool:
    """Returns whether a program has put ours under upstream's name itself, in ``sys.modules``."""
    return module is not None and module.__name__ == __package__


def _load_behind_ours() -> ModuleType:
    """Imports upstream's package, in whose place a program has put ours."""
    names = [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]
    ours = {name: sys.modules.pop(name) for name in names}
    try:
        return _imported(NAME)
    finally:
        for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
            _private.setdefault(name, sys.modules.pop(name))
        sys.modules.update(ours)


def attribute(part: str, name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    """Returns what upstream's part has under a name that ours lacks: helpers that others import from there.

    Raises:
        AttributeError: Upstream's part has no such name; or upstream is not installed.
    """
    try:
        if not name.startswith("__"):
            ours = sys.modules["pagestream.safetensors"]
            return vars(ours)[name] if name in vars(ours) else getattr(module(part), name)
    except ImportError as error:
        message = f"{NAME}.{part}.{name} is upstream's: {error}"
        raise AttributeError(message) from error
    except AttributeError:
        pass
    message = f"module 'pagestream.safetensors.{part}' has no attribute {name!r}"
    raise AttributeError(message)


def _missing(name: str) -> ModuleNotFoundError:
    message = f"{name} is needed here: pip install 'pagestream[safetensors]'"
    return ModuleNotFoundError(message, name=name)


def _load(name: str) -> ModuleType:
    """Loads an upstream module from its file. Its imports of upstream's name meanwhile get ours."""
    package = taken.get(NAME) or (None if replaced else module())
    finder = importlib.machinery.PathFinder
    spec = None if package is None else finder.find_spec(name, package.__path__)
    if spec is None or spec.loader is None:
        raise _missing(name)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@contextmanager
def errors_as_ours() -> Iterator[None]:
    """Turns errors of upstream's class into ours, which is derived from it."""
    try:
        yield
    except SafetensorError:
        raise
    except module().SafetensorError as error:
        raise SafetensorError(*error.args) from error


def check_names(names: Iterable[Any]) -> None:
    """Refuses the one name with which upstream writes a file that no reader accepts.

    https://github.com/huggingface/safetensors/issues/849

    Raises:
        SafetensorError: A tensor is called ``__metadata__``.
    """
    if "__metadata__" in names:
        message = "a tensor cannot be called '__metadata__': the format keeps that name for itself; rename it"
        raise SafetensorError(message)


def save(part: str, tensors: Mapping[str, Any], metadata: dict[str, str] | None) -> bytes:
    """Calls ``save`` of upstream's part."""
    check_names(tensors)
    with errors_as_ours():
        return bytes(module(part).save(tensors, metadata))


def save_file(
    part: str, tensors: Mapping[str, Any], filename: StrPath, metadata: dict[str, str] | None
) -> None:
    """Calls ``save_file`` of upstream's part; see `write`."""
    check_names(tensors)
    write(lambda path: module(part).save_file(tensors, path, metadata), filename)


def write(writer: Callable[[str], Any], filename: StrPath) -> None:
    """Saves a file by one of upstream's writers; see `_saving.save`.

    Upstream before 0.8 rewrites the file in place. Later versions rename a temporary file that only its owner
    may read: links become files, and the umask is ignored
    (https://github.com/huggingface/safetensors/issues/782).

    Args:
        writer: Writes to the path that it gets.
        filename: The file to save.

    Raises:
        SafetensorError: Upstream's writer refuses, or the file cannot be written.
        OSError: `filename` cannot be looked up.
    """
    with errors_as_ours():
        _saving.save(writer, filename)


def version() -> str:
    """Returns upstream's version; if it is not installed, the version whose names are here."""
    try:
        return str(module().__version__)
    except ImportError:
        return "0.8.0"
