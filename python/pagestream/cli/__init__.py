"""The command ``pagestream``. Each subcommand has a module, and prints through `_console`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from pagestream._native import __version__
from pagestream.cli import _codes


def main() -> None:
    """Runs the command in ``sys.argv``. Ctrl-C ends it without a traceback, even during imports."""
    try:
        _run()
    except KeyboardInterrupt:
        raise SystemExit(_codes.INTERRUPTED) from None


def _run() -> None:
    if sys.argv[1:] == ["--version"]:
        # Print it at once: for the value of an option, typer would import pydantic.
        print(__version__)
        return
    for name in ("typer", "rich"):
        if find_spec(name) is None:
            print(f"pagestream: the command needs {name}: pip install 'pagestream[cli]'", file=sys.stderr)
            raise SystemExit(_codes.WRONG_USE)
    from pagestream.cli._app import app

    app(prog_name="pagestream")
