"""Opens a file without permission."""

import os
import sys

from pagestream import MappedFile

if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
try:
    MappedFile(sys.argv[1])
except PermissionError as error:
    print(error.errno, error.filename)
