"""One rank that loads ``FOLDER`` with others, and tells each name; then what it raised, and after how long.

Its place comes from the usual variables; ``ADDRESS`` has the store.
"""

import json
import sys
import time

import torch.distributed as dist

from pagestream.errors import RankError
from pagestream.torch import stream_checkpoint

folder = sys.argv[1]
dist.init_process_group("gloo")
begun = time.monotonic()
try:
    for name, _ in stream_checkpoint(
        folder, device="cpu", memory_bytes=1 << 20, process_group=dist.group.WORLD
    ):
        print(name, flush=True)
        sys.stdin.readline()
        begun = time.monotonic()
except RankError as error:
    print(json.dumps([error.rank, str(error), time.monotonic() - begun]), flush=True)
