"""Writing is upstream's own code, found when it is first called."""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def writer(module: str, name: str) -> Callable[..., Any]:
    """Upstream's function `name` of `module`; its errors come out as ours.

    Args:
        module: Such as ``"safetensors.numpy"``.
        name: Such as ``"save_file"``.
    """
    try:
        function = getattr(import_module(module), name)
    except ImportError as error:
        return _missing(name, error)

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - upstream's own signature
        from safetensors import SafetensorError as Upstream

        from pagestream.errors import SafetensorError

        try:
            return function(*args, **options)
        except SafetensorError:
            raise
        except Upstream as error:
            raise SafetensorError(*error.args) from error

    return call


def _missing(name: str, cause: ImportError) -> Callable[..., Any]:
    def call(*_args: Any, **_options: Any) -> Any:  # noqa: ANN401
        message = f"{name} writes with upstream's code: pip install 'pagestream[safetensors]'"
        raise ImportError(message) from cause

    return call
