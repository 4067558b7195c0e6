"""A fault in a foreign mapping kills the process, whatever handlers are installed."""

import sys

from cut import cut_and_touch_a_foreign_mapping, opened
from handlers import install

install(sys.argv[2])
f = opened()
install(sys.argv[3])
f.read(0, 10)
cut_and_touch_a_foreign_mapping()
