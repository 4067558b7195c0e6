"""``pagestream run``: runs a command whose Python processes import pagestream's safetensors.

The command replaces this process. Its signals, its exit code and its tracebacks are its own.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import sysconfig
from typing import Annotated

import typer

# Python finds `sitecustomize` here.
_CHILDREN = os.path.join(os.path.dirname(__file__), "_children")


def run(
    command: Annotated[list[str], typer.Argument(help="A program or a Python script, and its arguments.")],
    module: Annotated[
        bool, typer.Option("-m", help="COMMAND is the name of a module, as in python -m.")
    ] = False,
) -> None:
    """Run any command. Its Python processes import pagestream's safetensors.

    A script that ends with .py, a module, and a file that is neither a program of PATH nor executable are run
    by the Python of pagestream.

    Example: pagestream run vllm serve /mnt/models/llama, or pagestream run load.py --model llama
    """
    program, arguments = _found(command, is_module=module)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_CHILDREN, os.environ.get("PYTHONPATH"))))
    # Python ignores these signals, and a new program would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(program, arguments)  # noqa: S606 - the user's command
    except OSError as error:
        error.filename = program
        if error.errno == errno.ENOEXEC:
            remedy = "a script needs a first line such as #!/bin/sh, or a name that ends with .py"
            error.strerror = f"{error.strerror}; {remedy}"
        raise


def _found(command: list[str], *, is_module: bool) -> tuple[str, list[str]]:
    """Returns the program to execute, and its arguments with its name.

    Raises:
        FileNotFoundError: There is no such command.
    """
    name = command[0]
    if is_module:
        return sys.executable, [sys.executable, "-m", *command]
    of_python = sys.executable, [sys.executable, *command]
    if name.endswith(".py") and os.path.exists(name):
        return of_python
    if program := shutil.which(name):
        return program, command
    # It is not executable. Python accepts scripts without a suffix, and folders and archives with a
    # `__main__.py`.
    if os.path.exists(name):
        return of_python
    message = f"no such command: {name}; expected a file, or a program in a folder of PATH"
    beside = os.path.join(sysconfig.get_path("scripts"), name)
    if os.path.exists(beside):
        message += f"; {beside} exists: name it, or activate its environment"
    raise FileNotFoundError(message)
