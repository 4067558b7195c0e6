"""Forks during a verification. The child's use of it is refused, and a new verification works."""

import os
import sys

from pagestream import open_checkpoint

weights = open_checkpoint(sys.argv[1])
children = []


def fork(_done, _total):
    if not children:
        children.append(os.fork())


try:
    report = weights.verify(progress=fork)
except ValueError as error:
    # The child cannot wait for threads that exist only in its parent.
    print("told" if "forked" in str(error) else error, flush=True)
    report = weights.verify()
    print(len(report.checked), len(report.bad), flush=True)
    os._exit(0)
_, status = os.waitpid(children[0], 0)
print(status, len(report.checked), len(report.bad))
