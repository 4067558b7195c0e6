"""Running a piece of Python in a process of its own, whose death is a result."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path


def run_python(
    code: str, *arguments: object, wrapper: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `code`; its `sys.argv[1:]` are `arguments`."""
    command = [*wrapper, sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, env=variables)


def output_of(code: str, *arguments: object, wrapper: tuple[str, ...] = (), **environment: str) -> str:
    """What `code` prints. It must end well."""
    done = run_python(code, *arguments, wrapper=wrapper, **environment)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def mappings_of(path: Path) -> list[range]:
    """The address ranges that this process maps of a file."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+\s*(.*)", line)
        if match and match[3] == str(path):
            found.append(range(int(match[1], 16), int(match[2], 16)))
    return found
