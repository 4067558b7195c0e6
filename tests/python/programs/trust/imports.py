"""Compares the state of a process before and after it imports pagestream."""

import importlib
import os
import sys
import threading
from pathlib import Path


def state():
    return {
        "environment": dict(os.environ),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "python_threads": threading.active_count(),
        "descriptors": sorted(
            os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()
        ),
        "search_path": list(sys.path),
        "finders": list(sys.meta_path),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook),
        "safetensors": sys.modules.get("safetensors"),
    }


list(Path("/proc/self/fd").iterdir())
before = state()
importlib.import_module("pagestream")
after = state()
assert "pagestream" in sys.modules
print([name for name in before if before[name] != after[name]])
