"""Returns the error of a use of the file in the first argument."""

import sys

from pagestream.errors import MappedReadError

path = sys.argv[1]


def used(function):
    try:
        function()
        for _ in range(100):
            pass
    except MappedReadError as error:
        return error
    raise AssertionError("nothing was raised")
