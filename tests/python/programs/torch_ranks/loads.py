"""A rank that loads ``FOLDER`` with others. Prints each name, and then its error or the number of tensors.

It ends once its input does. Its place comes from the usual variables. The rank ``STOPPED_RANK`` sends itself
the signal ``STOPPED_BY`` in its second exchange, to which all have come. With ``BY_READER`` it is torch that
loads, by our reader.

``HURRY`` is a file. When it exists, a silent peer counts as gone after a few looks: the next rank if
``HURRIES`` is "rank", the store if it is "store". No other peer counts as gone, however long it is silent. If
``HURRIES`` is "minute", the next rank counts as silent for 59 s, with the real limit. The first such look
creates the file ``HURRY.looked``.
"""

import json
import os
import signal
import sys
import threading
import time
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from pagestream.errors import RankError
from pagestream.torch import HuggingFaceStorageReader, _meeting, load_state_dict, stream_checkpoint

folder, hurries = sys.argv[1], os.environ.get("HURRIES")
if hurries != "minute":
    _meeting.SILENT_SECONDS = 10_000.0
is_gone = _meeting._Beats._is_gone


def is_gone_soon(self, beat):
    if os.path.exists(os.environ["HURRY"]):
        self._looks += 4000
    return is_gone(self, beat)


def is_gone_after_a_minute(self, beat):
    is_silent = os.path.exists(os.environ["HURRY"]) and beat == self._seen
    self._looks = 59 / _meeting.BEAT_SECONDS if is_silent else 0
    told = is_gone(self, beat)
    if is_silent:
        Path(os.environ["HURRY"] + ".looked").touch()
    return told


def hurry():
    while not os.path.exists(os.environ["HURRY"]):
        time.sleep(0.01)
    _meeting.SILENT_SECONDS = 2.0


def wait_until_watched():
    """Waits until this rank is connected to the next one, whose end it sees from then on."""
    while any(each._beats.watch is None or not each._beats.watch.stands for each in _meeting._open):
        time.sleep(0.01)


if hurries == "rank":
    _meeting._Beats._is_gone = is_gone_soon
elif hurries == "minute":
    _meeting._Beats._is_gone = is_gone_after_a_minute
elif hurries == "store":
    threading.Thread(target=hurry, daemon=True).start()
dist.init_process_group("gloo")
exchange, numbers = dist.all_to_all_single, count()


def exchange_or_stop(*arguments, **options):
    # Nobody is past the first exchange before all are watched.
    wait_until_watched()
    if next(numbers) and os.environ.get("STOPPED_RANK") == os.environ["RANK"]:
        Path(os.environ["HURRY"]).touch()
        os.kill(os.getpid(), signal.Signals[os.environ["STOPPED_BY"]])
    return exchange(*arguments, **options)


dist.all_to_all_single = exchange_or_stop
try:
    if os.environ.get("BY_READER"):
        state = {name: torch.zeros_like(tensor) for name, tensor in load_state_dict(folder).items()}
        print("begun", flush=True)
        dcp.load(state, storage_reader=HuggingFaceStorageReader(folder, memory_bytes=1 << 20))
    loaded = 0
    for name, _ in stream_checkpoint(
        folder, device="cpu", memory_bytes=1 << 20, process_group=dist.group.WORLD
    ):
        wait_until_watched()
        print(name, flush=True)
        loaded += 1
        sys.stdin.readline()
except RankError as error:
    print(json.dumps([error.rank, str(error)]), flush=True)
    # The store of the group is in one of them.
    sys.stdin.read()
else:
    print(json.dumps([None, f"{loaded} tensors"]), flush=True)
