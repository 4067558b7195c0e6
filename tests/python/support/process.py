"""Runs Python in a separate process, so that its death is a result."""

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

from support.torch_process import TorchProcess

# The programs that tests run, one per file.
PROGRAMS = Path(__file__).parents[1] / "programs"


def run_python(code, *arguments, wrapper=(), with_torch=False, has_brief_end=False, **environment):
    """Runs a program, or a few lines of code, with `arguments` as its `sys.argv[1:]`.

    With `with_torch`, the program is a fork of a process that has imported torch, and may have a brief end:
    see `support.torch_process`. The only deadline is the test's time-out, which prints the stacks of the
    program and kills it.
    """
    code = code if isinstance(code, Path) else textwrap.dedent(code)
    pipe = subprocess.PIPE
    options = {"stdout": pipe, "stderr": pipe, "text": True, "env": {**os.environ, **environment}}
    if with_torch:
        process = TorchProcess(code, *arguments, has_brief_end=has_brief_end, **options)
    else:
        program = [str(code)] if isinstance(code, Path) else ["-c", code]
        process = subprocess.Popen([*wrapper, sys.executable, *program, *map(str, arguments)], **options)
    with process:
        try:
            output, errors = process.communicate()
        except BaseException:
            kill(process.pid)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def kill(process):
    """Kills a process and its children. Prints the position of each thread in Python and in the kernel."""
    py_spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if py_spy is not None:
        command = [py_spy, "dump", "--nonblocking", "--pid", str(process)]
        print(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    children = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
            print(process, (task / "comm").read_text().strip())
            print((task / "stack").read_text())  # readable by root alone
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    for child in children:
        kill(child)


def printed_on_terminal(command, columns, *, cwd):
    """Returns the output of a command on a terminal of this width. The command must succeed."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
    with subprocess.Popen(command, cwd=cwd, stdout=theirs, env=environment) as process:
        os.close(theirs)
        found = b""
        # On Linux, reading a closed pseudo-terminal fails with EIO.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 1 << 16):
                found += piece
        os.close(ours)
    assert process.returncode == 0, found.decode()
    return found.decode().replace("\r\n", "\n")


def output_of(
    code,
    *arguments,
    **options,
):
    """Returns the output of a program, which must succeed. Options: see `run_python`."""
    done = run_python(code, *arguments, **options)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def start_python(program, *arguments, wrapper=(), with_torch=False, has_brief_end=False, **environment):
    """Starts a program with pipes for standard input and output. Options: see `run_python`."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    options["env"] = {**os.environ, **environment}
    if with_torch:
        return TorchProcess(program, *arguments, has_brief_end=has_brief_end, **options)
    return subprocess.Popen([*wrapper, sys.executable, str(program), *map(str, arguments)], **options)


def until(condition):
    """Waits for a condition. Returns false if it does not hold within ten minutes."""
    deadline = time.monotonic() + 600
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def threads(process="self"):
    """Returns the name of each thread of a process by thread ID, including native threads."""
    found = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):
            found[int(task.name)] = (task / "comm").read_text().strip()
    return found


def thread_names(process="self"):
    """Returns the names of a process's threads."""
    return list(threads(process).values())


def has_never_waited(task):
    """Returns whether a thread, given by its /proc folder, may be so new that it has its creator's name."""
    return "\nvoluntary_ctxt_switches:\t0\n" in (task / "status").read_text()


def has_new_thread():
    """Returns whether another thread of this process may not have its own name yet."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if int(task.name) != threading.get_native_id() and has_never_waited(task):
                return True
    return False


def threads_end(name):
    """Returns whether the threads with this name end. A thread stays visible for a moment after its end.

    Prints the kernel position of threads that do not end.
    """
    deadline, missed = time.monotonic() + 600, 0
    # A single look may miss a thread while another one ends.
    while missed < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
        missed = 0 if has_new_thread() or name in thread_names() else missed + 1
    if missed:
        return True
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            print((task / "comm").read_text().strip(), (task / "stack").read_text(), sep="\n")
    return False


def open_descriptors(path):
    """Returns the number of descriptors of a file in this process."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(link) == str(path)
    return found
