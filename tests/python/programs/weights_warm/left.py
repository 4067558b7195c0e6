"""Exits during a lead."""

import sys

from pagestream import open_checkpoint

weights = open_checkpoint(sys.argv[1])
lead = weights.warm()
print(lead.fraction < 1)
