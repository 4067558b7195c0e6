"""The command line: which subcommands there are."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import typer

from pagestream._common import environment
from pagestream._native import __version__
from pagestream.cli import _output
from pagestream.cli.bench import bench
from pagestream.cli.check import check
from pagestream.cli.evict import evict
from pagestream.cli.info import info
from pagestream.cli.residency import residency
from pagestream.cli.run import run
from pagestream.cli.tokenize import tokenize
from pagestream.cli.verify import verify
from pagestream.cli.warm import warm

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Token files and safetensors weights: what they hold, how they are read, what is in the page cache.",
)


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="Print the version."),
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def _ending(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def ended(**options: Any) -> None:  # noqa: ANN401 - those of the command
        with _output.ending(as_json=options.get("as_json", False)):
            environment.check()
            command(**options)

    return ended


for each in (info, check, residency, warm, evict, verify, tokenize, bench):
    app.command()(_ending(each))
# What follows the command is the command's.
app.command(context_settings={"allow_interspersed_args": False})(run)
