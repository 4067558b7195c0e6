"""Interrupts an audit hook when the second shard of a folder is about to be read ahead."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pagestream.safetensors import safe_open

from support.process import open_descriptors, threads_end

first, second, _ = sorted(Path(sys.argv[1]).iterdir())
interrupted = []


def hook(event, arguments):
    if event == "pagestream.open" and arguments[0] == str(second):
        interrupted.append(second)
        raise KeyboardInterrupt


sys.addaudithook(hook)
with safe_open(first, "np") as file:
    for name in file.keys():  # noqa: SIM118 - no mapping
        try:
            found = file.get_tensor(name)
        except KeyboardInterrupt:
            found = file.get_tensor(name)
        assert found.min() == found.max() == 16 + int(name.split(".")[-1])
assert interrupted == [second]
# A lead without work is off, and its file is not kept for the next open.
assert threads_end("pagestream-read")
print(f"interrupted, and read; open once it is closed: {open_descriptors(first)}")
