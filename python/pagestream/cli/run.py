"""``pagestream run``: a program under `pagestream.safetensors.install`."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pagestream._common import environment
from pagestream.cli import _output
from pagestream.safetensors import install

if TYPE_CHECKING:
    from types import TracebackType

# Python processes that the program starts find `sitecustomize` here.
_CHILDREN = os.path.join(os.path.dirname(__file__), "_children")


def run(
    program: Annotated[list[str], typer.Argument(help="A script and its arguments, as after `python`.")],
    module: Annotated[bool, typer.Option("-m", help="The program is the name of a module.")] = False,
) -> None:
    """Run a Python program that finds pagestream in place of safetensors, and so do the processes it starts.

    Example: pagestream run load.py --model llama, or pagestream run -m package.load
    """
    name, *_ = program
    # As `python` does it: the folder of a script, and the current one of a module.
    sys.path.insert(0, os.getcwd() if module else os.path.dirname(os.path.abspath(name)))
    if not (_has_module(name) if module else os.path.exists(name)):
        _output.fail(f"no such {'module' if module else 'program'}: {name}", _output.WRONG_USE)
    with _output.ending(as_json=False):
        environment.check()
        install()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_CHILDREN, os.environ.get("PYTHONPATH"))))
    sys.argv = program
    try:
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except Exception as error:  # noqa: BLE001 - whatever the program does not catch
        shown = error.with_traceback(_of_program(error.__traceback__))
        sys.excepthook(type(shown), shown, shown.__traceback__)
        raise typer.Exit(1) from None


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of this command and of `runpy`."""
    others = (__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename in others:
        traceback = traceback.tb_next
    return traceback
