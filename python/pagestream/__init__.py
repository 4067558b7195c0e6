"""Token files and safetensors weights, mapped: fast, and without bus errors.

>>> import pagestream
>>> pagestream.MappedFile("tokens.bin").mode
'shared'
"""

from __future__ import annotations

from pagestream import errors
from pagestream._native import __version__
from pagestream.files.guard import guard
from pagestream.files.mapped_file import FileSystem, MappedFile, Residency
from pagestream.files.staging import StagingBuffer
from pagestream.loading.batches import Batch, PackedBatch
from pagestream.loading.loader import TokenLoader
from pagestream.loading.metrics import LoaderMetrics
from pagestream.loading.mixture import Mixture
from pagestream.tokens.corpus import TokenCorpus, TokenShard, open_tokens
from pagestream.tokens.documents import Documents
from pagestream.tokens.writing import write_tokens
from pagestream.weights.checkpoint import Checkpoint, TensorInfo, VerifyReport, open_checkpoint

__all__ = [
    "Batch",
    "Checkpoint",
    "Documents",
    "FileSystem",
    "LoaderMetrics",
    "MappedFile",
    "Mixture",
    "PackedBatch",
    "Residency",
    "StagingBuffer",
    "TensorInfo",
    "TokenCorpus",
    "TokenLoader",
    "TokenShard",
    "VerifyReport",
    "__version__",
    "errors",
    "guard",
    "open_checkpoint",
    "open_tokens",
    "write_tokens",
]
