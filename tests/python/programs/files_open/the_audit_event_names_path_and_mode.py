"""The audit event contains the path and the mode, and a hook can refuse it."""

import sys

from pagestream import MappedFile, open_checkpoint, open_tokens
from pagestream.safetensors import safe_open

seen = []


def hook(event, arguments):
    if event == "pagestream.open":
        seen.append(arguments)
        if arguments[0].endswith("secret"):
            raise PermissionError("refused by the hook")


sys.addaudithook(hook)
path = sys.argv[1]
MappedFile(path, mode="read")
open_tokens(path)
for opener in (open_checkpoint, lambda path: safe_open(path, "np", mmap_mode="private")):
    try:
        opener(path)
    except ValueError:
        pass
# The tokens have no index beside them, so none is opened.
modes = ["read", "auto", "auto", "private"]
assert seen == [(path, mode) for mode in modes], seen
try:
    MappedFile("/missing/secret")
except PermissionError as error:
    print(error)
