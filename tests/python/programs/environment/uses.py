"""Maps a token file and takes one batch from it."""

import sys

from pagestream import MappedFile, TokenLoader, open_tokens

MappedFile(sys.argv[1])
tokens = open_tokens(sys.argv[1], mmap_mode="read")
with TokenLoader(tokens, sequence_length=8, batch_size=2) as loader:
    next(loader)
