"""Loads ``FOLDER`` as one of several ranks. Prints each name, and then the error or the number of tensors.

It ends once its input does. The usual variables define its rank. The rank ``STOPPED_RANK`` sends itself the
signal ``STOPPED_BY`` in its first exchange, once all ranks have joined it. With ``BY_READER``, torch loads
through our reader. The rank ``KILLED_RANK`` kills itself when it has its first tensor.

``BEAT_SECONDS`` is the time between two beats. With ``NEVER_WATCHES``, a rank never connects to the next one.
If ``STOPPED_IN`` is "connect", the rank ``STOPPED_RANK`` sends itself the signal before it connects.

``HURRY`` is a file. Once it exists, a silent peer counts as gone after a few looks: the next rank if
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
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from pagestream.errors import RankError
from pagestream.torch import HuggingFaceStorageReader, _meeting, load_state_dict, stream_checkpoint

folder, hurries = sys.argv[1], os.environ.get("HURRIES")
if hurries != "minute":
    _meeting.SILENT_SECONDS = 10_000.0
_meeting.BEAT_SECONDS = float(os.environ.get("BEAT_SECONDS", _meeting.BEAT_SECONDS))
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


def is_never_gone(self, beat):
    is_gone(self, beat)


def hurry():
    while not os.path.exists(os.environ["HURRY"]):
        time.sleep(0.01)
    _meeting.SILENT_SECONDS = 2.0


if hurries == "rank":
    _meeting._Beats._is_gone = is_gone_soon
elif hurries == "minute":
    _meeting._Beats._is_gone = is_gone_after_a_minute
elif hurries == "store":
    # The real limit is unchanged, and on a busy machine a live rank beats late.
    _meeting._Beats._is_gone = is_never_gone
    threading.Thread(target=hurry, daemon=True).start()
if os.environ.get("NEVER_WATCHES"):
    _meeting._Beats.has_watched = property(lambda self: False, lambda self, is_watched: None)
dist.init_process_group("gloo")
exchange = dist.all_to_all_single


connect = _meeting.Meeting.connect
is_stopped_in_connect = os.environ.get("STOPPED_IN") == "connect"


def stop_if_told():
    if os.environ.get("STOPPED_RANK") == os.environ["RANK"]:
        Path(os.environ["HURRY"]).touch()
        os.kill(os.getpid(), signal.Signals[os.environ["STOPPED_BY"]])


def exchange_or_stop(*arguments, **options):
    if not is_stopped_in_connect:
        stop_if_told()
    return exchange(*arguments, **options)


def connect_or_stop(self):
    if is_stopped_in_connect:
        stop_if_told()
    connect(self)


dist.all_to_all_single = exchange_or_stop
_meeting.Meeting.connect = connect_or_stop
try:
    if os.environ.get("BY_READER"):
        state = {name: torch.zeros_like(tensor) for name, tensor in load_state_dict(folder).items()}
        print("begun", flush=True)
        dcp.load(state, storage_reader=HuggingFaceStorageReader(folder, memory_bytes=1 << 20))
    loaded = 0
    for name, _ in stream_checkpoint(
        folder, device="cpu", memory_bytes=1 << 20, process_group=dist.group.WORLD
    ):
        if os.environ.get("KILLED_RANK") == os.environ["RANK"]:
            os.kill(os.getpid(), signal.SIGKILL)
        print(name, flush=True)
        loaded += 1
        sys.stdin.readline()
except RankError as error:
    print(json.dumps([error.rank, str(error)]), flush=True)
    # One of the ranks hosts the store of the group.
    sys.stdin.read()
else:
    print(json.dumps([None, f"{loaded} tensors"]), flush=True)
