"""Token files and safetensors weights, mapped: fast, and without bus errors.

>>> import pagestream
>>> pagestream.MappedFile("tokens.bin").mode
'shared'
"""

from __future__ import annotations

from pagestream import errors
from pagestream._native import __version__
from pagestream.mapping import FileSystem, MappedFile, Residency
from pagestream.staging import StagingBuffer
from pagestream.tokens import TokenCorpus, TokenShard, open_tokens
from pagestream.weights import Checkpoint, TensorInfo, open_checkpoint

__all__ = [
    "Checkpoint",
    "FileSystem",
    "MappedFile",
    "Residency",
    "StagingBuffer",
    "TensorInfo",
    "TokenCorpus",
    "TokenShard",
    "__version__",
    "errors",
    "open_checkpoint",
    "open_tokens",
]
