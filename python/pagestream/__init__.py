"""Token files and safetensors weights, mapped: fast, and without bus errors.

>>> import pagestream
>>> pagestream.MappedFile("tokens.bin").mode
'shared'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pagestream._common.interpreters import require_supported

# Call it before importing the native module, which stays in the process once loaded.
require_supported()

from pagestream import errors  # noqa: E402
from pagestream._common import environment  # noqa: E402
from pagestream._common.public import names_of  # noqa: E402
from pagestream._native import __version__  # noqa: E402

if TYPE_CHECKING:
    from pagestream import safetensors as safetensors
    from pagestream import torch as torch
    from pagestream.files.guard import guard
    from pagestream.files.mapped_file import FileSystem, MappedFile, Residency
    from pagestream.files.staging import StagingBuffer
    from pagestream.loading.batches import Batch, PackedBatch
    from pagestream.loading.epochs import Epoch
    from pagestream.loading.loader import TokenLoader
    from pagestream.loading.metrics import LoaderMetrics
    from pagestream.loading.mixture import Mixture
    from pagestream.tokens.corpus import TokenCorpus, TokenShard, open_tokens
    from pagestream.tokens.documents import Documents
    from pagestream.tokens.writing import write_tokens
    from pagestream.weights.checkpoint import Checkpoint, TensorInfo, VerifyReport, open_checkpoint
    from pagestream.weights.streaming import TensorStream
    from pagestream.weights.warming import Warming

__all__ = [
    "Batch",
    "Checkpoint",
    "Documents",
    "Epoch",
    "FileSystem",
    "LoaderMetrics",
    "MappedFile",
    "Mixture",
    "PackedBatch",
    "Residency",
    "StagingBuffer",
    "TensorInfo",
    "TensorStream",
    "TokenCorpus",
    "TokenLoader",
    "TokenShard",
    "VerifyReport",
    "Warming",
    "__version__",
    "errors",
    "guard",
    "open_checkpoint",
    "open_tokens",
    "write_tokens",
]

# The module of each name. A module is imported when its name is first used
# (https://peps.python.org/pep-0562/), so that a program that loads weights does not wait for the imports of
# tokens, and `import pagestream` does not wait for NumPy.
_HOMES = {
    "Batch": "pagestream.loading.batches",
    "Checkpoint": "pagestream.weights.checkpoint",
    "Documents": "pagestream.tokens.documents",
    "Epoch": "pagestream.loading.epochs",
    "FileSystem": "pagestream.files.mapped_file",
    "LoaderMetrics": "pagestream.loading.metrics",
    "MappedFile": "pagestream.files.mapped_file",
    "Mixture": "pagestream.loading.mixture",
    "PackedBatch": "pagestream.loading.batches",
    "Residency": "pagestream.files.mapped_file",
    "StagingBuffer": "pagestream.files.staging",
    "TensorInfo": "pagestream.weights.checkpoint",
    "TensorStream": "pagestream.weights.streaming",
    "TokenCorpus": "pagestream.tokens.corpus",
    "TokenLoader": "pagestream.loading.loader",
    "TokenShard": "pagestream.tokens.corpus",
    "VerifyReport": "pagestream.weights.checkpoint",
    "Warming": "pagestream.weights.warming",
    "guard": "pagestream.files.guard",
    "open_checkpoint": "pagestream.weights.checkpoint",
    "open_tokens": "pagestream.tokens.corpus",
    "write_tokens": "pagestream.tokens.writing",
}

# Public modules, imported on first use: for example, `import pagestream` is enough for `pagestream.torch`.
_MODULES = ("errors", "safetensors", "torch")

environment.apply()


if not TYPE_CHECKING:  # for type checkers, a name that is missing here is an error

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    from importlib.util import find_spec

    # `help` gets each name.
    modules = [name for name in _MODULES if name != "torch" or find_spec("torch")]
    return names_of(globals(), [*__all__, *modules])
