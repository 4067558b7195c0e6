"""Waiting until the other threads of this process are idle."""

import contextlib
import os
import stat
import threading
import time
from pathlib import Path

from support.process import has_never_waited, until

# System calls that wait for another thread or process: futex, poll, ppoll, select, pselect6, epoll_wait,
# epoll_pwait, accept, accept4, recvfrom, recvmsg, rt_sigtimedwait; and clock_nanosleep.
WAITS = {
    "x86_64": {202, 7, 271, 23, 270, 232, 281, 43, 288, 45, 47, 128, 230},
    "aarch64": {98, 73, 72, 22, 202, 242, 207, 212, 137, 115},
}[os.uname().machine]
FUTEX = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
READ = {"x86_64": 0, "aarch64": 63}[os.uname().machine]
SLEEP = {"x86_64": 230, "aarch64": 115}[os.uname().machine]


def _wait_of(task):
    """Returns the system call that blocks a thread, with its arguments, or None if the thread runs."""
    call, *arguments = (task / "syscall").read_text().split()
    if call == "running":
        return None
    # A read of a pipe or a socket waits for its writer. A read of a file does not.
    is_of_pipe = int(call) == READ and not stat.S_ISREG(os.fstat(int(arguments[0], 16)).st_mode)
    return (int(call), arguments) if int(call) in WAITS or is_of_pipe else None


def _has_time_limit(call, arguments):
    """For example, `pagestream-idle` wakes ten times a second: on a busy machine, once in each look."""
    return call == SLEEP or (call == FUTEX and int(arguments[3], 16) != 0)


def _own_threads():
    """Returns the /proc folders of the other threads that pagestream or Python has started.

    Threads of other libraries do not count: an earlier test may have imported a framework whose pool never
    rests. A new thread has its creator's name until it names itself, so every thread that has never waited
    counts.
    """
    of_python = {thread.native_id for thread in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            number, name = int(task.name), (task / "comm").read_text().strip()
            if number == threading.get_native_id():
                continue
            if name.startswith("pagestream") or number in of_python or has_never_waited(task):
                yield task, name


def _look():
    """Returns the context switches of each waiting thread, and one running thread or None."""
    found, running = {}, None
    for task, name in _own_threads():
        try:
            wait = _wait_of(task)
            if wait is None:
                running = f"{task.name} {name} runs: {(task / 'stat').read_text().split(') ')[-1]}"
            elif not _has_time_limit(*wait):
                lines = (task / "status").read_text().splitlines()
                found[task.name, name] = [line for line in lines if "ctxt_switches" in line]
        except OSError:
            running = f"{task.name} {name} has ended"
    return found, running


def threads_rest():
    """Waits until every other thread of pagestream or Python is blocked. Returns true, or fails after 600 s.

    Two looks with equal context switches prove that no thread ran in between. Waits with a time limit are
    exceptions: their threads count as blocked, although they wake up from time to time.
    """
    deadline = time.monotonic() + 600
    while True:
        (before, running), (after, runs_still) = _look(), _look()
        if not running and not runs_still and before == after:
            return True
        if time.monotonic() > deadline:
            switched = [each for each in before.keys() | after.keys() if before.get(each) != after.get(each)]
            message = f"threads do not rest: {running}; {runs_still}; switched in between: {switched}"
            raise AssertionError(message)
        time.sleep(0.005)


def _task(name):
    """Returns the /proc folder of the thread with this name, or None."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() == name:
                return task
    return None


def waits_of(name):
    """Returns how often a thread with this name has waited, or None if there is none."""
    with contextlib.suppress(OSError):
        if task := _task(name):
            lines = (task / "status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
    return None


def sleep_ends(name, is_over):
    """Waits until a thread with this name has slept and sleeps again, or until the condition holds."""

    def sleeping():
        with contextlib.suppress(OSError):
            task = _task(name)
            if task and (task / "syscall").read_text().split()[0] == str(SLEEP):
                return waits_of(name)
        return None

    first = until(lambda: sleeping() or is_over())
    return until(lambda: sleeping() not in (None, first) or is_over())
