"""Exits during a warming."""

import sys

from pagestream import open_checkpoint

weights = open_checkpoint(sys.argv[1])
warming = weights.warm()
print(warming.fraction < 1)
