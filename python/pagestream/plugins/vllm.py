"""vLLM: the load format ``pagestream``.

vLLM finds `register` among the entry points of ``vllm.general_plugins``; see
https://docs.vllm.ai/en/latest/design/plugin_system.html.
"""

from __future__ import annotations

from functools import cache

__all__ = ["register"]


@cache
def register() -> None:
    """Adds ``pagestream`` to vLLM's load formats. vLLM calls this in each of its processes, perhaps twice.

    ``vllm serve MODEL --load-format pagestream`` uses it. ``--model-loader-extra-config '{"ahead": …}'``
    accepts the arguments of `pagestream.safetensors.install`, besides vLLM's own keys.

    Examples:
        >>> from vllm.config.load import LoadConfig
        >>> from vllm.model_executor.model_loader import get_model_loader
        >>> register()
        >>> get_model_loader(LoadConfig(load_format="pagestream")).__class__.__name__
        'PagestreamModelLoader'
    """
    from vllm.model_executor.model_loader import register_model_loader

    from pagestream.plugins.vllm_loader import PagestreamModelLoader

    register_model_loader("pagestream")(PagestreamModelLoader)
