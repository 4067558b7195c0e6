"""Reads of a truncated file raise, whatever handlers are installed before and after the file is opened."""

import sys

from cut import cut_and_read, opened
from handlers import install

install(sys.argv[2])
f = opened()
install(sys.argv[3])
cut_and_read(f)
