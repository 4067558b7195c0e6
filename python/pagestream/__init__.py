"""Token files and safetensors weights, mapped: fast, and without bus errors.

>>> import pagestream
>>> pagestream.MappedFile("tokens.bin").mode
'shared'
"""

from __future__ import annotations

from pagestream import errors
from pagestream._native import __version__
from pagestream.batches import Batch, PackedBatch
from pagestream.documents import Documents
from pagestream.loader import TokenLoader
from pagestream.mapping import FileSystem, MappedFile, Residency
from pagestream.mixture import Mixture
from pagestream.staging import StagingBuffer
from pagestream.tokens import TokenCorpus, TokenShard, open_tokens
from pagestream.weights import Checkpoint, TensorInfo, open_checkpoint
from pagestream.writing import write_tokens

__all__ = [
    "Batch",
    "Checkpoint",
    "Documents",
    "FileSystem",
    "MappedFile",
    "Mixture",
    "PackedBatch",
    "Residency",
    "StagingBuffer",
    "TensorInfo",
    "TokenCorpus",
    "TokenLoader",
    "TokenShard",
    "__version__",
    "errors",
    "open_checkpoint",
    "open_tokens",
    "write_tokens",
]
