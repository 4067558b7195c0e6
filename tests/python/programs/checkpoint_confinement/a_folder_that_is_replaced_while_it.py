"""Replaces a folder during its open, and checks that the original folder is used."""

import os
import sys

import pagestream

folder, outside = sys.argv[1:]


def hook(event, arguments):
    if event == "pagestream.open" and arguments[0].endswith("00001-of-00012.safetensors"):
        os.rename(folder, folder + ".old")
        os.symlink(outside, folder)


sys.addaudithook(hook)
try:
    weights = pagestream.open_checkpoint(folder)
except pagestream.errors.FileChangedError as error:
    print(error.filename, error)
