"""An environment variable sets the mode, and an argument overrides it."""

import sys

from pagestream import MappedFile, open_tokens

print(
    MappedFile(sys.argv[1]).mode,
    MappedFile(sys.argv[1], mode="shared").mode,
    open_tokens(sys.argv[1]).shards[0].mode,
)
