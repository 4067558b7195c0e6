"""pagestream for PyTorch. Importing this imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    message = "pagestream.torch needs PyTorch, which is not installed: pip install 'pagestream[torch]'"
    raise ModuleNotFoundError(message, name="torch") from error

from pagestream._common.public import names_of
from pagestream.torch.dataset import TokenDataset
from pagestream.torch.loader import TokenLoader
from pagestream.torch.modules import LoadReport, load_into
from pagestream.torch.sampler import DistributedTokenSampler
from pagestream.torch.weights import load_state_dict, stream_checkpoint

if TYPE_CHECKING:
    from pagestream.torch.storage_readers import HuggingFaceStorageReader, QuantizedHuggingFaceStorageReader

__all__ = [
    "DistributedTokenSampler",
    "HuggingFaceStorageReader",
    "LoadReport",
    "QuantizedHuggingFaceStorageReader",
    "TokenDataset",
    "TokenLoader",
    "load_into",
    "load_state_dict",
    "stream_checkpoint",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    # torch.distributed.checkpoint takes its time to import, and few programs need it.
    if name in ("HuggingFaceStorageReader", "QuantizedHuggingFaceStorageReader"):
        try:
            from pagestream.torch import storage_readers
        except ImportError as error:
            message = f"{name} takes the place of a reader that torch {torch.__version__} lacks: {error}"
            raise ImportError(message) from error

        return getattr(storage_readers, name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return names_of(globals(), __all__)
