"""Prints the file that a verification reports if it may not read the checksums."""

import os
import sys

from pagestream import open_checkpoint

weights = open_checkpoint(sys.argv[1])
(written,) = weights.write_checksums()
os.chmod(written, 0)
os.chmod(os.path.dirname(written), 0o755)
if os.getuid() == 0:
    # Root could read everything.
    for folder in (os.path.dirname(written), os.path.dirname(os.path.dirname(written))):
        os.chmod(folder, 0o755)
    os.seteuid(65534)
(error,) = weights.verify().bad
print(error.path)
