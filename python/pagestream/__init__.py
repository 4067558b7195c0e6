"""Token files and safetensors weights, mapped: fast, and without bus errors.

>>> import pagestream
>>> pagestream.MappedFile("tokens.bin").mode
'shared'
"""

from __future__ import annotations

from pagestream import errors
from pagestream._native import __version__
from pagestream.mapping import FileSystem, MappedFile, Residency, StagingBuffer
from pagestream.tokens import TokenCorpus, TokenShard, open_tokens

__all__ = [
    "FileSystem",
    "MappedFile",
    "Residency",
    "StagingBuffer",
    "TokenCorpus",
    "TokenShard",
    "__version__",
    "errors",
    "open_tokens",
]
