"""A checkpoint opens once the write lease on one of its files is released."""

import sys

from lease import under_a_lease

from pagestream import open_checkpoint

under_a_lease(lambda: print(open_checkpoint(sys.argv[2])["x"].sum()))
