"""Control groups that limit the memory of a program, including its page cache."""

import contextlib
import itertools
import os
from pathlib import Path

from support import real

ROOT = Path("/sys/fs/cgroup")
NUMBERS = itertools.count()


@contextlib.contextmanager
def memory_limit(limit_bytes):
    """Makes a control group without swap. Yields the command prefix that runs a program in the group."""
    group, limits = _group(limit_bytes)
    try:
        group.mkdir()
    except OSError as error:
        real.missing(f"a control group for memory ({error})")
    try:
        for name, value in limits.items():
            # The swap files are missing if the kernel does not account for swap.
            if (group / name).exists():
                (group / name).write_text(str(value))
        yield ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"))
    finally:
        group.rmdir()


def _group(limit_bytes):
    """Returns the folder of a new group, and the values to write to its files."""
    name = f"pagestream-{os.getpid()}-{next(NUMBERS)}"
    if (ROOT / "memory/memory.limit_in_bytes").exists():
        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        return ROOT / "memory" / name, dict.fromkeys(names, limit_bytes)
    controllers = ROOT / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        controllers.write_text("+memory")
    if not controllers.exists() or "memory" not in controllers.read_text().split():
        real.missing("a control group for memory")
    return ROOT / name, {"memory.max": limit_bytes, "memory.swap.max": 0}
