"""SGLang: its own loader over pagestream's ``safe_open``.

SGLang finds `register` among the entry points of ``sglang.srt.plugins``, and loads all plug-ins that are
installed, unless the environment variable ``SGLANG_PLUGINS`` names others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagestream.safetensors import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Weights = Iterator[tuple[str, Any]]

__all__ = ["register"]

# What SGLang's loader iterates over, one shard after the other and by several threads.
_ITERATORS = ("safetensors_weights_iterator", "buffered_multi_thread_safetensors_weights_iterator")


def register() -> None:
    """Has SGLang read safetensors files by pagestream. SGLang calls this once in each of its processes.

    Which files it takes, and which part of a tensor a rank copies, stays as it is.

    Examples:
        >>> register()
        >>> from sglang.srt.plugins.hook_registry import HookRegistry
        >>> HookRegistry.apply_hooks()  # as SGLang does at its start
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name in _ITERATORS:
        HookRegistry.register(f"sglang.srt.model_loader.weight_utils.{name}", _read_ahead, HookType.AROUND)


def _read_ahead(iterate: Callable[..., Weights], *arguments: object, **options: object) -> Weights:
    """Iterates as SGLang does. Its function opens the files only once it is iterated over."""
    with install():
        yield from iterate(*arguments, **options)
