"""Rejects interpreters that pagestream does not support.

A process has a single fault handler, which raises in the main interpreter, so sub-interpreters are rejected.
Free-threaded builds of Python are also rejected, because pagestream has not been tested with them.
"""

from __future__ import annotations

import sys
from importlib import import_module

# CPython 3.13 renamed the module. If a build has neither, its interpreter counts as the main interpreter.
_MODULES = ("_interpreters", "_xxsubinterpreters")


def require_supported() -> None:
    """Does nothing in the main interpreter of a build with the global interpreter lock.

    Raises:
        ImportError: This is a sub-interpreter, or a free-threaded build.
    """
    # `sysconfig` also shows this, but it imports all variables of the build.
    if "t" in sys.abiflags:
        message = (
            "import pagestream: this is a free-threaded build of Python, for which pagestream is not "
            "tested; use a build with the GIL, for example python3.14 instead of python3.14t"
        )
        raise ImportError(message, name="pagestream")
    for name in _MODULES:
        try:
            interpreters = import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            message = (
                "import pagestream: this is a sub-interpreter, and pagestream works only in the main "
                "interpreter of a process; import it there, or start another process (mod_wsgi: set "
                "WSGIApplicationGroup to %{GLOBAL})"
            )
            raise ImportError(message, name="pagestream")
        return
