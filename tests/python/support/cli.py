"""Runs the command in this process."""

import json

from typer.testing import CliRunner

from pagestream.cli import _app

# The commands that accept files and folders.
COMMANDS = ("info", "check", "residency", "warm", "evict", "verify")
GOOD, BAD, WRONG_USE, NOT_VERIFIED = 0, 1, 2, 3


def pagestream_command(*arguments):
    return CliRunner().invoke(_app.app, list(map(str, arguments)))


def in_one_line(text):
    """Joins lines that were wrapped at 80 columns."""
    return " ".join(text.split())


def facts(*arguments, exit_code=GOOD):
    found = pagestream_command(*arguments, "--json")
    assert found.exit_code == exit_code, found.output
    return json.loads(found.stdout)
