"""Turns logging on and opens tokens, so that the library's messages appear."""

import logging
import sys

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s")
from pagestream import open_tokens

open_tokens(sys.argv[1])
