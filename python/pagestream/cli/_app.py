"""The command line: the table of subcommands."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
import typer.core

from pagestream._common import environment
from pagestream._native import __version__
from pagestream.cli import _codes, _output

if TYPE_CHECKING:
    from collections.abc import Callable

# The commands, each in a module of its name, with the first line of their help. A module is imported when its
# command is used, so that `--help` does not wait for NumPy and rich.
COMMANDS = {
    "info": "Show the content of a token file, a safetensors file or a checkpoint.",
    "check": "Time the storage, show how pagestream reads from it, and suggest mount options.",
    "residency": "Show which pages are in the page cache, as a bar for each file.",
    "warm": "Read files into the page cache, many requests at a time.",
    "evict": "Drop files from the page cache, to measure cold reads or to make room.",
    "verify": "Validate headers, indices and sizes, and compare bytes with checksums where there are any.",
    "tokenize": "Make a token file of text.",
    "bench": "Measure pagestream on this machine against np.memmap, torch's DataLoader and safetensors.",
    "env": "Print versions, limits and the mounts of paths, for a bug report.",
    "run": "Run any command. Its Python processes import pagestream's safetensors.",
}
# Options after the command of `run` belong to that command.
_SETTINGS = {"run": {"allow_interspersed_args": False}}


class _Group(typer.core.TyperGroup):
    """The commands in the table."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - those of typer
        super().__init__(**attributes)
        # Names for suggestions after a typing error. `get_command` returns the commands.
        self.commands = dict.fromkeys(COMMANDS, self)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002 - click is not always typer's own
        """Imports a command. Returns None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        function = getattr(import_module(f"pagestream.cli.{cmd_name}"), cmd_name)
        of_one = typer.Typer(add_completion=False, rich_markup_mode=None)
        of_one.command(cmd_name, context_settings=_SETTINGS.get(cmd_name))(_ending(function))
        return typer.main.get_command(of_one)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Imports and runs a command. Sets the exit code for Ctrl-C: some versions of typer set 1."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(_codes.INTERRUPTED) from None
        except Exception as error:
            # The usage error of some versions of typer has the words of pydantic. Its class is not public.
            if isinstance(message := getattr(error, "message", None), str):
                error.message = message.removeprefix("Value error, ")  # type: ignore[attr-defined]
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
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
    def ended(**options: Any) -> None:  # noqa: ANN401 - options of the command
        with _output.ending(as_json=options.get("as_json", False)):
            environment.check()
            command(**options)

    return ended
