"""The same holds where openat2 is missing."""

import sys

import pagestream

try:
    pagestream.open_checkpoint(sys.argv[1])
except pagestream.errors.SafetensorError as error:
    print(error)
