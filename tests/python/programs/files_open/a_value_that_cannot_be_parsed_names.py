"""An error for an invalid value names the environment variable."""

import sys

try:
    from pagestream import MappedFile

    MappedFile(sys.argv[1])
except ValueError as error:
    print(error)
