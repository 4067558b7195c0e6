"""An audit hook first refuses the second shard of a folder, and later allows everything."""

import sys
from pathlib import Path

from pagestream.safetensors import safe_open

first, second, _ = sorted(Path(sys.argv[1]).iterdir())
asked = []
lets_pass = False


def hook(event, arguments):
    if event == "pagestream.open":
        asked.append(arguments[0])
        if arguments[0] == str(second) and not lets_pass:
            raise PermissionError


sys.addaudithook(hook)
with safe_open(first, "np") as file:
    for name in file.keys():  # noqa: SIM118 - no mapping
        file.get_tensor(name).sum()
assert asked == [str(first), str(second)], asked
lets_pass = True
with safe_open(second, "np") as file:
    assert file.get_tensor("layers.2.00")[0] == 32
print("refused, and read")
