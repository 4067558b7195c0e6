"""A value that cannot be parsed names the variable."""

import sys

try:
    from pagestream import MappedFile

    MappedFile(sys.argv[1])
except ValueError as error:
    print(error)
