"""Refuses sub-interpreters: a process has one fault handler, which raises in the main interpreter."""

from __future__ import annotations

from importlib import import_module

# CPython 3.13 renamed the module. If a build has neither, it counts as the main interpreter.
_MODULES = ("_interpreters", "_xxsubinterpreters")


def require_main() -> None:
    """Does nothing in the main interpreter.

    Raises:
        ImportError: This is a sub-interpreter.
    """
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
