"""A file with a write lease opens once the lease is released."""

import sys

from lease import under_a_lease

from pagestream import MappedFile

under_a_lease(lambda: print(MappedFile(sys.argv[1], mode=sys.argv[2]).size))
