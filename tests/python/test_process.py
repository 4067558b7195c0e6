"""Tests kill a program that hangs, and print its stacks."""

import signal
from pathlib import Path

from support.process import PROGRAMS, kill, start_python, until


def state(process):
    """Returns the letter of a process's state, or "" once it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_program_that_hangs_is_killed_with_its_child_and_their_stacks_are_printed(capsys):
    with start_python(PROGRAMS / "process/hangs.py") as program:
        child = int(program.stdout.readline())
        assert until(lambda: state(program.pid) == state(child) == "S")
        kill(program.pid)
        assert program.wait() == -signal.SIGKILL
    assert until(lambda: state(child) in ("", "Z"))
    printed = capsys.readouterr().out
    assert "waits_for_ever" in printed
    assert "child_waits" in printed
