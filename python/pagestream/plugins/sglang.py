"""SGLang: its own loader on top of pagestream's ``safe_open``.

SGLang finds `register` among the entry points of ``sglang.srt.plugins``, and calls the plug-ins of all
installed packages. This plug-in therefore changes nothing until the user enables it with
``PAGESTREAM_SGLANG=on``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pagestream._common import environment
from pagestream.safetensors import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Weights = Iterator[tuple[str, Any]]

__all__ = ["register"]

_log = logging.getLogger("pagestream.sglang")

# The iterators of SGLang's loader, for one shard after another and for several threads.
_ITERATORS = ("safetensors_weights_iterator", "buffered_multi_thread_safetensors_weights_iterator")


def register() -> None:
    """Makes SGLang read safetensors files with pagestream, if ``PAGESTREAM_SGLANG=on`` is set.

    SGLang calls this once in each of its processes. Without the variable, nothing is registered. SGLang still
    chooses the files, and the part of a tensor that a rank copies.

    Raises:
        ValueError: ``PAGESTREAM_SGLANG`` is neither ``on`` nor ``off``. SGLang logs the error and continues
            with its own loader.

    Examples:
        >>> import os
        >>> os.environ["PAGESTREAM_SGLANG"] = "on"  # better in the shell that starts SGLang
        >>> register()
        >>> from sglang.srt.plugins.hook_registry import HookRegistry
        >>> HookRegistry.apply_hooks()  # as SGLang does at its start
    """
    if not environment.sglang():
        _log.info("SGLang uses its own loader; with PAGESTREAM_SGLANG=on it reads by pagestream")
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name in _ITERATORS:
        HookRegistry.register(f"sglang.srt.model_loader.weight_utils.{name}", _read_ahead, HookType.AROUND)


def _read_ahead(iterate: Callable[..., Weights], *arguments: object, **options: object) -> Weights:
    """Iterates as SGLang does. SGLang's function opens the files only when iteration begins."""
    with install():
        yield from iterate(*arguments, **options)
