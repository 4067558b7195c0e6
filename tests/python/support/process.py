"""Runs Python in a process of its own, whose death is a result."""

import contextlib
import os
import pty
import subprocess
import sys
import textwrap
import time
from pathlib import Path

# Programs that tests run, one a file.
PROGRAMS = Path(__file__).parents[1] / "programs"


def run_python(
    code,
    *arguments,
    wrapper=(),
    timeout_seconds=90,
    **environment,
):
    """Runs a program, or a few lines of code; its `sys.argv[1:]` are `arguments`."""
    program = [str(code)] if isinstance(code, Path) else ["-c", textwrap.dedent(code)]
    command = [*wrapper, sys.executable, *program, *map(str, arguments)]
    variables = {**os.environ, **environment}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=timeout_seconds, env=variables
    )


def printed_on_terminal(command, columns, *, cwd):
    """Returns what a command, which must end well, prints on a terminal so wide."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
    with subprocess.Popen(command, cwd=cwd, stdout=theirs, env=environment) as process:
        os.close(theirs)
        found = b""
        # Linux ends a pseudo-terminal with EIO.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 1 << 16):
                found += piece
        os.close(ours)
    assert process.returncode == 0, found.decode()
    return found.decode().replace("\r\n", "\n")


def output_of(
    code,
    *arguments,
    wrapper=(),
    timeout_seconds=90,
    **environment,
):
    """Returns the output of a program, which must end well."""
    done = run_python(code, *arguments, wrapper=wrapper, timeout_seconds=timeout_seconds, **environment)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def start_python(program, *arguments, wrapper=(), **environment):
    """Starts a program whose standard streams are pipes."""
    command = [*wrapper, sys.executable, str(program), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **environment})


def until(condition):
    """Waits for something that happens by itself."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def threads(process="self"):
    """Returns the name of each thread of a process by its number, native ones among them."""
    found = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):
            found[int(task.name)] = (task / "comm").read_text().strip()
    return found


def thread_names(process="self"):
    """Returns the names of a process's threads."""
    return list(threads(process).values())


def threads_end(name):
    """Returns whether the threads of a name end. One is seen for a moment after its end.

    Prints where in the kernel those that do not end wait.
    """
    deadline, missed = time.monotonic() + 60, 0
    # A look at the threads may miss one while another ends.
    while missed < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
        missed = 0 if name in thread_names() else missed + 1
    if missed:
        return True
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            print((task / "comm").read_text().strip(), (task / "stack").read_text(), sep="\n")
    return False


def open_descriptors(path):
    """Returns how many descriptors this process has of a file."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(link) == str(path)
    return found
