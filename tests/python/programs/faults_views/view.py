"""Opens the file of the first argument in the mode of the second, and evaluates the errors of its uses."""

import errno
import sys

import numpy as np

from pagestream import MappedFile
from pagestream.errors import FileChangedError, MappedReadError

path, mode = sys.argv[1], sys.argv[2]


def opened():
    """Returns the file and an array of it, in which each 8 bytes may hold their own number."""
    f = MappedFile(path, mode=mode)
    return f, np.frombuffer(f, "u8")


def use(function):
    """Returns the error of `function`, which also frees its objects."""
    try:
        function()
        for _ in range(100):
            pass
    except MappedReadError as error:
        assert error.errno == errno.EIO and error.filename == path, error
        return error
    raise AssertionError("nothing was raised")


def refused(function):
    try:
        function()
    except (MappedReadError, FileChangedError) as error:
        assert error.filename == path
    else:
        raise AssertionError("nothing was raised")
