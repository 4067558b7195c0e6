"""Programs that start, report that they are ready, and wait for a signal to begin."""

import contextlib

from support.process import start_python

TIMEOUT_SECONDS = 60


@contextlib.contextmanager
def processes(program, arguments, wrapper=()):
    """Yields processes of a program, one for each list of arguments. All have printed "open" and wait."""
    with contextlib.ExitStack() as ends:
        found = []
        for each in arguments:
            process = start_python(program, *each, wrapper=wrapper)
            ends.callback(process.wait)
            ends.callback(process.kill)
            ends.callback(process.stdin.close)
            ends.callback(process.stdout.close)
            found.append(process)
        assert [process.stdout.readline() for process in found] == ["open\n"] * len(found)
        yield found


def begin(processes):
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def last_lines(processes):
    """Returns the last line of each process. All must exit successfully."""
    found = []
    for process in processes:
        # `communicate` would lose output that was read together with an earlier line.
        output = process.stdout.read()
        assert process.wait(TIMEOUT_SECONDS) == 0
        found.append(output.strip())
    return found
