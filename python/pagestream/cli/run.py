"""``pagestream run``: a program under `pagestream.safetensors.install`."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Annotated

import typer

from pagestream.cli import _output
from pagestream.safetensors import install


def run(
    program: Annotated[list[str], typer.Argument(help="A script and its arguments, as after `python`.")],
    module: Annotated[bool, typer.Option("-m", help="The program is the name of a module.")] = False,
) -> None:
    """Run a Python program that finds pagestream in the place of safetensors.

    Example: pagestream run load.py --model llama, or pagestream run -m package.load
    """
    name, *_ = program
    if not module and not os.path.isfile(name) and not os.path.isdir(name):
        _output.fail(f"no such program: {name}", _output.WRONG_USE)
    install()
    sys.argv = program
    # As `python` does it: the folder of a script, and the current one of a module.
    sys.path.insert(0, os.getcwd() if module else os.path.dirname(os.path.abspath(name)))
    if module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")
