"""Writes tokens, and waits halfway until its standard input ends: PATH FORMAT."""

import sys

from pagestream import write_tokens


def arrays():
    yield [7, 8]
    print("writing", flush=True)
    sys.stdin.read()
    yield [9]


write_tokens(sys.argv[1], arrays(), dtype="uint16", format=sys.argv[2])
