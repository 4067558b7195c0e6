"""A program that logs hears the library."""

import logging
import sys

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s")
from pagestream import open_tokens

open_tokens(sys.argv[1])
