"""Sends Ctrl-C to `pagestream warm` during its imports, and while it lists the files of a folder.

Prints the exit code of each run.
"""

import os
import signal
import sys
from importlib.abc import MetaPathFinder

from pagestream.cli import main

folder = sys.argv[1]


class Interrupter(MetaPathFinder):
    """Interrupts the import of a module."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            signal.raise_signal(signal.SIGINT)


def run(what):
    try:
        main()
    except SystemExit as end:
        print(what, end.code)


# The order is from the outside in, because imported modules are not looked up again.
for name in (
    "typer",
    "pagestream.cli._app",
    "pagestream.cli.warm",
    "rich.progress",
    "pagestream.cli._target",
):
    sys.argv[1:] = ["warm", folder]
    sys.meta_path.insert(0, Interrupter(name))
    run(name)
    del sys.meta_path[0]
for name in ("info", "check", "residency", "evict", "verify", "tokenize", "bench", "env", "run"):
    sys.argv[1:] = [name, folder]
    sys.meta_path.insert(0, Interrupter(f"pagestream.cli.{name}"))
    run(name)
    del sys.meta_path[0]


def listdir(path):
    signal.raise_signal(signal.SIGINT)


os.listdir = listdir
for name in ("warm", "info", "check", "residency", "evict"):
    sys.argv[1:] = [name, folder]
    run(f"{name} lists")
