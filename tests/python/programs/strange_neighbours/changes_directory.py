"""Changes the directory right before the next shard is opened, changes back, and opens that shard."""

import contextlib
import os
import sys
import time
from pathlib import Path

from pagestream.safetensors import safe_open

here, elsewhere = sys.argv[1:]
os.chdir(here)
first, second = sorted(os.listdir())
asked = []


def hook(event, arguments):
    if event == "pagestream.open":
        asked.append(arguments[0])
        if asked == [first, second]:
            os.chdir(elsewhere)


def open_files():
    """Returns the paths of open files, except files that close during the listing."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(path))
    return found


sys.addaudithook(hook)
with safe_open(first, "np") as file:
    for name in file.keys():  # noqa: SIM118 - no mapping
        file.get_tensor(name).sum()
    assert asked == [first, second]
    # Another thread opens the file.
    while not (opened := {f"{here}/{second}", f"{elsewhere}/{second}"}.intersection(open_files())):
        time.sleep(0.01)
    print(*opened)
    os.chdir(here)
    with safe_open(second, "np") as following:
        print(int(following.get_tensor(following.keys()[0]).sum()))
