"""Imports pagestream in two sub-interpreters, in the main interpreter, and in two sub-interpreters."""

import sys
from importlib import import_module

try:
    interpreters = import_module("_interpreters")
    isolated, legacy = {"config": "isolated"}, {"config": "legacy"}
except ImportError:
    interpreters = import_module("_xxsubinterpreters")
    isolated, legacy = {"isolated": True}, {"isolated": False}

CODE = f"""
import sys
sys.path[:] = {sys.path!r}
try:
    import pagestream
    print("imported", flush=True)
except ImportError as error:
    print(f"ImportError: {{error}}", flush=True)
"""


def import_in_others():
    for options in (isolated, legacy):
        interpreter = interpreters.create(**options)
        interpreters.run_string(interpreter, CODE)
        interpreters.destroy(interpreter)


import_in_others()
exec(CODE)
import_in_others()
