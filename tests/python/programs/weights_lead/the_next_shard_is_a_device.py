"""Reads the first shard of a folder, so that the lead would continue with the second.

Usage: the_next_shard_is_a_device.py FIRST SECOND
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pagestream.safetensors import safe_open

from support.process import threads_end

first, second = sys.argv[1:]
asked = []
sys.addaudithook(lambda event, arguments: asked.append(arguments[0]) if event == "pagestream.open" else None)
with safe_open(first, "np") as file:
    for name in file.keys():  # noqa: SIM118 - no mapping
        file.get_tensor(name).sum()
    assert threads_end("pagestream-next")
assert asked == [first, second], asked
