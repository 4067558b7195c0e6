"""The command ``pagestream``. Each subcommand is a file; what they print goes through `_output`."""

from __future__ import annotations

import sys

_EXTRA = ("typer", "rich", "click")


def main() -> None:
    """Runs the command of ``sys.argv``."""
    try:
        from pagestream.cli._app import app
    except ImportError as error:
        if (error.name or "").split(".")[0] not in _EXTRA:
            raise
        print(f"pagestream: the command needs {error.name}: pip install 'pagestream[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    app(prog_name="pagestream")
