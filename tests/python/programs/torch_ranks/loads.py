"""One rank that loads ``FOLDER`` with others, and tells each name; then what it raised, and after how long.

Its place comes from the usual variables. The rank ``STOPPED_RANK`` sends itself the signal ``STOPPED_BY`` in
its second exchange, to which all have come. With ``BY_READER`` it is torch that loads, by our reader.
"""

import json
import os
import signal
import sys
import time
from itertools import count

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from pagestream.errors import RankError
from pagestream.torch import HuggingFaceStorageReader, load_state_dict, stream_checkpoint

folder = sys.argv[1]
dist.init_process_group("gloo")
begun = time.monotonic()
if os.environ.get("STOPPED_RANK") == os.environ["RANK"]:
    exchange, numbers = dist.all_to_all_single, count()

    def stop(*arguments, **options):
        if next(numbers):
            os.kill(os.getpid(), signal.Signals[os.environ["STOPPED_BY"]])
        return exchange(*arguments, **options)

    dist.all_to_all_single = stop
try:
    if os.environ.get("BY_READER"):
        state = {name: torch.zeros_like(tensor) for name, tensor in load_state_dict(folder).items()}
        print("begun", flush=True)
        begun = time.monotonic()
        dcp.load(state, storage_reader=HuggingFaceStorageReader(folder, memory_bytes=1 << 20))
    for name, _ in stream_checkpoint(
        folder, device="cpu", memory_bytes=1 << 20, process_group=dist.group.WORLD
    ):
        print(name, flush=True)
        sys.stdin.readline()
        begun = time.monotonic()
except RankError as error:
    print(json.dumps([error.rank, str(error), time.monotonic() - begun]), flush=True)
