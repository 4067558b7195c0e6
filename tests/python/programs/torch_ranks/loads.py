"""One rank that loads ``FOLDER`` with others, and tells each name; then what it raised, and after how long.

Its place comes from the usual variables. The rank ``STOPPED_RANK`` stops in its second exchange, to which all
have come.
"""

import json
import os
import signal
import sys
import time
from itertools import count

import torch.distributed as dist

from pagestream.errors import RankError
from pagestream.torch import stream_checkpoint

folder = sys.argv[1]
dist.init_process_group("gloo")
begun = time.monotonic()
if os.environ.get("STOPPED_RANK") == os.environ["RANK"]:
    exchange, numbers = dist.all_to_all_single, count()

    def stop(*arguments, **options):
        if next(numbers):
            os.kill(os.getpid(), signal.SIGSTOP)
        return exchange(*arguments, **options)

    dist.all_to_all_single = stop
try:
    for name, _ in stream_checkpoint(
        folder, device="cpu", memory_bytes=1 << 20, process_group=dist.group.WORLD
    ):
        print(name, flush=True)
        sys.stdin.readline()
        begun = time.monotonic()
except RankError as error:
    print(json.dumps([error.rank, str(error), time.monotonic() - begun]), flush=True)
