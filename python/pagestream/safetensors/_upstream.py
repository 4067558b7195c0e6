"""Access to upstream's own package, whose code writes files, even while its name leads to ours.

`install` (see `_install`) puts this package under upstream's name. Only this module then knows where
upstream's code is. Its functions guard against known defects of that code.
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
        ImportError: The module, or a package that it needs, is not installed.
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
    """Returns whether a program itself has put this package under upstream's name, in ``sys.modules``."""
    return module is not None and module.__name__ == __package__


def _load_behind_ours() -> ModuleType:
    """Imports upstream's package, even though a program has put ours in its place."""
    names = [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]
    ours = {name: sys.modules.pop(name) for name in names}
    try:
        return _imported(NAME)
    finally:
        for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
            _private.setdefault(name, sys.modules.pop(name))
        sys.modules.update(ours)


def attribute(part: str, name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    """Returns an attribute of an upstream module that ours lacks, for example a helper that programs import.

    Raises:
        AttributeError: Upstream's module has no such name; or upstream is not installed.
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
    """Loads an upstream module from its file. Its imports of upstream's name get ours meanwhile."""
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
    """Turns errors of upstream's class into errors of ours, which is derived from it."""
    try:
        yield
    except SafetensorError:
        raise
    except module().SafetensorError as error:
        raise SafetensorError(*error.args) from error


def check_names(names: Iterable[Any]) -> None:
    """Rejects the one name with which upstream writes a file that no reader accepts.

    https://github.com/huggingface/safetensors/issues/849

    Raises:
        SafetensorError: A tensor is named ``__metadata__``.
    """
    if "__metadata__" in names:
        message = "a tensor cannot be called '__metadata__': the format keeps that name for itself; rename it"
        raise SafetensorError(message)


def save(part: str, tensors: Mapping[str, Any], metadata: dict[str, str] | None) -> bytes:
    """Calls ``save`` of an upstream module."""
    check_names(tensors)
    with errors_as_ours():
        return bytes(module(part).save(tensors, metadata))


def save_file(
    part: str, tensors: Mapping[str, Any], filename: StrPath, metadata: dict[str, str] | None
) -> None:
    """Calls ``save_file`` of an upstream module; see `write`."""
    check_names(tensors)
    write(lambda path: module(part).save_file(tensors, path, metadata), filename)


def write(writer: Callable[[str], Any], filename: StrPath) -> None:
    """Saves a file with one of upstream's writers; see `_saving.save`.

    Upstream before 0.8 rewrites the file in place. Later versions rename a temporary file that only its owner
    may read: links become files, and the umask is ignored
    (https://github.com/huggingface/safetensors/issues/782).

    Args:
        writer: Writes to a given path.
        filename: The file to save.

    Raises:
        SafetensorError: Upstream's writer rejects the tensors, or the file cannot be written.
        OSError: `filename` cannot be resolved.
    """
    with errors_as_ours():
        _saving.save(writer, filename)


def version() -> str:
    """Returns upstream's version, or, if it is not installed, the version whose names are available here."""
    try:
        return str(module().__version__)
    except ImportError:
        return "0.8.0"
