"""Installs ours before or after a client is imported, and lists the files that ours opens.

The last argument says when: "first" or "last".
"""

import importlib
import os
import sys
import warnings

warnings.simplefilter("ignore")
opened = []
sys.addaudithook(lambda event, arguments: opened.append(arguments[0]) if event == "pagestream.open" else None)


def import_clients(*names):
    """Imports torch and the clients, and puts ours in upstream's place first or last."""
    if sys.argv[-1] == "last":
        for name in ("torch", *names):
            importlib.import_module(name)
    import pagestream.safetensors

    pagestream.safetensors.install()
    for name in ("torch", *names):
        importlib.import_module(name)


def names_opened():
    return {os.path.basename(os.fsdecode(path)) for path in opened}
