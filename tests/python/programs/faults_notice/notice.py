"""Opens the file of the first argument, and reports whether a use of it raised."""

import sys

import numpy as np

from pagestream import MappedFile
from pagestream.errors import MappedReadError

path = sys.argv[1]
unraised = []
f = MappedFile(path)
array = np.frombuffer(f, "u8")
sys.unraisablehook = lambda unraisable: unraised.append(unraisable.exc_type.__name__)


def raised(function):
    try:
        function()
        for _ in range(1000):
            pass
    except MappedReadError as error:
        assert error.filename == path
        return True
    return False
