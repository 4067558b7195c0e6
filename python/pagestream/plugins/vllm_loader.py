"""vLLM's loader for the format ``pagestream``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from pagestream._common import environment
from pagestream.safetensors import install

if TYPE_CHECKING:
    from collections.abc import Generator

    from vllm.config.load import LoadConfig

__all__ = ["PagestreamModelLoader"]


class PagestreamModelLoader(DefaultModelLoader):
    """vLLM's loader of safetensors files, on top of pagestream's ``safe_open``.

    Tensors are views of the files on the CPU, with read-ahead. vLLM's use of them stays the same: the choice
    of files, of experts, and of the part of a tensor that a rank copies.

    Args:
        load_config: vLLM's configuration. ``ahead`` in its ``model_loader_extra_config`` is the maximum
            read-ahead; see `pagestream.safetensors.safe_open`. The other keys belong to vLLM's own loader.

    Raises:
        TypeError: ``ahead`` is neither False nor a number.
        ValueError: ``ahead`` is below 1; a key is unknown to vLLM; or vLLM is told to read files ahead itself
            (``safetensors_load_strategy``).

    Examples:
        >>> from vllm.config.load import LoadConfig
        >>> options = {"ahead": 256 << 20, "enable_multithread_load": True}
        >>> loader = PagestreamModelLoader(LoadConfig(model_loader_extra_config=options))
        >>> loader.load_config.load_format
        'safetensors'
    """

    def __init__(self, load_config: LoadConfig) -> None:
        options = dict(load_config.model_loader_extra_config)
        self._ahead = options.pop("ahead", None)
        environment.ahead_bytes(self._ahead)
        strategy = load_config.safetensors_load_strategy
        if strategy in {"eager", "prefetch"}:
            message = (
                f"safetensors_load_strategy is {strategy!r}, expected none: the load format "
                '"pagestream" reads ahead by itself; leave the option out'
            )
            raise ValueError(message)
        # vLLM prepares the files of formats that it knows. "lazy" also stops its own read-ahead, which it
        # uses by default on NFS and Lustre.
        as_vllm_knows = dataclasses.replace(
            load_config,
            load_format="safetensors",
            safetensors_load_strategy=strategy or "lazy",
            model_loader_extra_config=options,
        )
        super().__init__(as_vllm_knows)

    def _get_weights_iterator(
        self, source: DefaultModelLoader.Source
    ) -> Generator[tuple[str, Any], None, None]:
        """Iterates over names and tensors of a source of weights."""
        with install(ahead=self._ahead):
            yield from super()._get_weights_iterator(source)
