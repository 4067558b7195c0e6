"""Runs programs in one process: ``one_after_another.py PROGRAM [ARGUMENT…] -- PROGRAM [ARGUMENT…] …``."""

import runpy
import sys

words = sys.argv[1:]
while words:
    end = words.index("--") if "--" in words else len(words)
    sys.argv, words = words[:end], words[end + 1 :]
    runpy.run_path(sys.argv[0], run_name="__main__")
