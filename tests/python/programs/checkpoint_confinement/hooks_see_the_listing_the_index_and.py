"""Audit hooks see the folder listing, the index and every file, and can refuse each of them."""

import sys

import pagestream


def hook(event, arguments):
    if event in ("os.listdir", "pagestream.open") and sys.argv[1] in arguments[0]:
        print(event, *arguments)
        if arguments[0].endswith(sys.argv[3]):
            raise RuntimeError("refused")


sys.addaudithook(hook)
try:
    pagestream.open_checkpoint(sys.argv[2])
except RuntimeError as error:
    print(error)
