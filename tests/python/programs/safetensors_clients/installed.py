"""Calls `install` before or after a client is imported, and lists the files that pagestream opens.

The last argument is "first" or "last". `forks.py` of the slow clients has imported the clients before it
forks this process.
"""

import importlib
import os
import sys
import warnings

warnings.simplefilter("ignore")
opened = []
sys.addaudithook(lambda event, arguments: opened.append(arguments[0]) if event == "pagestream.open" else None)


def import_clients(*names):
    """Imports torch and the clients, and calls `install` first or last."""
    assert "safetensors" in sys.modules
    is_first = sys.modules["safetensors"] is sys.modules.get("pagestream.safetensors")
    assert is_first == (sys.argv[-1] == "first"), "the fork is of another process"
    import pagestream.safetensors

    if not is_first:
        pagestream.safetensors.install()
    for name in ("torch", *names):
        importlib.import_module(name)


def names_opened():
    return {os.path.basename(os.fsdecode(path)) for path in opened}
