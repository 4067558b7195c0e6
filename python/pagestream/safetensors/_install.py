"""`install` and `uninstall`: this package under upstream's name, for code that imports ``safetensors``.

They replace the modules themselves, and leave upstream's unchanged. There are three reasons: `install` must
work if upstream is not installed; ``import safetensors`` must return the very module
`pagestream.safetensors`; and a function that this package lacks must be missing, and not come from upstream.
"""

from __future__ import annotations

import importlib.machinery
import sys
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from pagestream._common import environment
from pagestream._common.checks import check_bool
from pagestream._common.public import set_module
from pagestream.safetensors import _defaults, _upstream
from pagestream.safetensors._upstream import NAME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

__all__ = ["Installed", "install", "uninstall"]

_OURS = "pagestream.safetensors"
# Upstream's compiled module. Code that imports from it gets this package's names.
_COMPILED = f"{NAME}._safetensors_rust"

# Names that were rebound in other modules, with their former values.
_rebound: list[tuple[dict[str, Any], str, Any]] = []


class Installed:
    """The result of `install`: a context manager that uninstalls at the end of its block.

    Attributes:
        strict: The argument of `install`.
        ahead: The argument of `install`.
        copy: The argument of `install`.

    Examples:
        >>> import pagestream.safetensors
        >>> with pagestream.safetensors.install():
        ...     import safetensors
        ...     safetensors.safe_open is pagestream.safetensors.safe_open
        True
    """

    def __init__(self, *, strict: bool, ahead: int | None, copy: bool | None) -> None:
        self.strict = strict
        self.ahead = ahead
        self.copy = copy

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Undoes this call's installation, even if another call came later."""
        _take_away(self)


@set_module("pagestream.safetensors")
def install(*, strict: bool = True, ahead: int | None = None, copy: bool | None = None) -> Installed:
    """Puts `pagestream.safetensors` in place of ``safetensors`` for the whole process.

    From now on, ``import safetensors`` and ``from safetensors.torch import load_file`` return this package's
    names. Modules that have already bound upstream's functions or classes (``from safetensors import
    safe_open``) get this package's under the same names. Other references, such as default arguments and
    closures, stay upstream's.

    Calls nest: each needs its own `uninstall`.

    Args:
        strict: Whether to reject headers that the format forbids but upstream accepts. It applies to calls
            without an argument ``strict``, for example in third-party code. Of nested installs the last one
            counts.
        ahead: The maximum read-ahead, for calls without an argument ``ahead``; see `safe_open`.
        copy: Whether tensors own their memory, for calls without an argument ``copy``. Otherwise they are
            views of the file, and a program that rewrites the file in place (``open(path, "wb")`` or
            ``"r+b"``) changes them. None means ``PAGESTREAM_COPY``, or otherwise upstream's behaviour:
            ``safetensors.numpy.load_file`` copies, and all other calls return views.

    Returns:
        A context manager that uninstalls.

    Raises:
        TypeError: `strict` is neither True nor False, `ahead` neither False nor a number, or `copy` neither
            True, False nor None.
        ValueError: `ahead` is a number below 1; or ``PAGESTREAM_AHEAD`` or ``PAGESTREAM_COPY`` is invalid.

    Examples:
        >>> import pagestream.safetensors
        >>> installed = pagestream.safetensors.install()
        >>> from safetensors.numpy import load_file
        >>> load_file.__module__
        'pagestream.safetensors.numpy'
        >>> pagestream.safetensors.uninstall()

        A program that rewrites files that it has loaded needs copies:

        >>> with pagestream.safetensors.install(copy=True):
        ...     from safetensors import safe_open
        ...     with safe_open("model.safetensors", "np") as file:
        ...         bias = file.get_tensor("bias")
        >>> open("model.safetensors", "wb").close()
        >>> bias
        array([0., 0., 0.], dtype=float32)
    """
    with _upstream.lock.lock:
        environment.ahead_bytes(ahead)
        environment.copies(copy)
        installed = Installed(strict=check_bool("strict", strict), ahead=ahead, copy=copy)
        _defaults.installed.append(installed)
        if len(_defaults.installed) == 1:
            _put_in_place()
    return installed


@set_module("pagestream.safetensors")
def uninstall() -> None:
    """Undoes the last `install` that is in effect.

    Modules that were imported meanwhile keep the names that they imported, which continue to work.

    Raises:
        RuntimeError: Nothing is installed.

    Examples:
        >>> import pagestream.safetensors
        >>> _ = pagestream.safetensors.install()
        >>> pagestream.safetensors.uninstall()
        >>> import safetensors
        >>> safetensors.__name__
        'safetensors'
    """
    _take_away(None)


def _take_away(installed: Installed | None) -> None:
    """Undoes an `install`, or the last one if `uninstall` has already undone it."""
    with _upstream.lock.lock:
        in_effect = _defaults.installed
        if not in_effect:
            message = "pagestream.safetensors is not installed in place of safetensors"
            raise RuntimeError(message)
        in_effect.remove(installed if installed in in_effect else in_effect[-1])
        if not in_effect:
            _put_back()


class _Finder(MetaPathFinder, Loader):
    """Finds this package's modules under upstream's names."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not _is_upstreams(fullname):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname == NAME)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        try:
            found = _counterpart(spec.name)
        except ModuleNotFoundError as error:
            if error.name != _our_name(spec.name):
                raise
            message = (
                f"No module named {spec.name!r} (pagestream.safetensors is installed in place of {NAME})"
            )
            raise ModuleNotFoundError(message, name=spec.name) from None
        # The import system sets this to the other name's spec. Keep this one, because reload and pickle use
        # it.
        spec.loader_state = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        found = module.__spec__
        if found is not None and found.loader is self:
            module.__spec__ = found.loader_state


_finder = _Finder()


def _our_name(name: str) -> str:
    return _OURS if name == _COMPILED else _OURS + name.removeprefix(NAME)


def _counterpart(name: str) -> ModuleType:
    return import_module(_our_name(name))


# Other threads import modules meanwhile, so loops run over copies of `sys.modules` and of modules' names.


def _put_in_place() -> None:
    with suppress(ImportError):  # Reading does not need upstream's code.
        _upstream.module()
    found = {name: module for name, module in sys.modules.copy().items() if _is_upstreams(name)}
    # Do this before upstream's names lead to this package, because its modules import upstream's.
    ours = {name: _counterpart(name) for name in found if find_spec(_our_name(name)) is not None}
    replacements = _replacements(found, ours)
    _upstream.taken.update(found)
    _upstream.replaced = True
    sys.meta_path.insert(0, _finder)
    # In this order, because other threads import meanwhile: one of the two must always be available.
    sys.modules.update(ours)
    for name in found.keys() - ours.keys():
        del sys.modules[name]
    _rebind(replacements)


def _put_back() -> None:
    sys.modules.update(_upstream.taken)
    sys.meta_path.remove(_finder)
    for name in [name for name in sys.modules.copy() if _is_upstreams(name) and name not in _upstream.taken]:
        del sys.modules[name]
    _upstream.taken.clear()
    _upstream.replaced = False
    while _rebound:
        namespace, name, value = _rebound.pop()
        namespace[name] = value


def _is_upstreams(name: str) -> bool:
    return name == NAME or name.startswith(f"{NAME}.")


def _replacements(found: dict[str, ModuleType], ours: dict[str, ModuleType]) -> dict[int, tuple[Any, Any]]:
    """Returns upstream's modules, functions and classes by identity, each with its replacement.

    The error class stays: ours is derived from upstream's, so a handler of upstream's catches both. A handler
    of ours would miss errors from upstream's own code.
    """
    replacements: dict[int, tuple[Any, Any]] = {}
    for name, module in ours.items():
        theirs = found[name]
        replacements[id(theirs)] = (theirs, module)
        for attribute, value in vars(theirs).copy().items():
            if (
                not isinstance(value, (type, FunctionType, BuiltinFunctionType))
                or attribute == "SafetensorError"
            ):
                continue
            home = getattr(value, "__module__", None)
            if (home is None or home.split(".")[0] in (NAME, "builtins")) and hasattr(module, attribute):
                replacements[id(value)] = (value, getattr(module, attribute))
    return replacements


def _rebind(replacements: dict[int, tuple[Any, Any]]) -> None:
    for name, module in sys.modules.copy().items():
        if name.split(".")[0] == "pagestream" or _is_upstreams(name) or not isinstance(module, ModuleType):
            continue
        namespace = vars(module)
        for attribute, value in namespace.copy().items():
            theirs, replacement = replacements.get(id(value), (None, None))
            if theirs is not None and theirs is value and replacement is not theirs:
                namespace[attribute] = replacement
                _rebound.append((namespace, attribute, value))
