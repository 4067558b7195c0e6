"""One of several ranks that load ``FOLDER``.

``FAILING_RANK`` ends its process by an exception while the iterator is open. ``ABSENT_RANK`` does not begin,
and the group waits for it for ``TIMEOUT_SECONDS``. Each rank prints its error, the elapsed time and its log
messages, and ends once its input does, because one of the ranks hosts the store of the group.
"""

import json
import logging
import os
import sys
import time
from datetime import timedelta

import torch.distributed as dist

from pagestream.torch import _meeting, stream_checkpoint

dist.init_process_group("gloo")
rank = os.environ["RANK"]
logged = []
_meeting.LATE_SECONDS = 0.0
logging.getLogger("pagestream").setLevel(logging.WARNING)
handler = logging.Handler()
handler.emit = lambda record: logged.append(record.getMessage())
logging.getLogger("pagestream.ranks").addHandler(handler)
dist.barrier()
if "TIMEOUT_SECONDS" in os.environ:
    timeout = timedelta(seconds=float(os.environ["TIMEOUT_SECONDS"]))
    getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)(timeout, dist.group.WORLD)
if rank == os.environ.get("ABSENT_RANK"):
    sys.stdin.readline()
    os._exit(0)
hear = _meeting._Beats.hear


def hear_late(self, store):
    if store.check(["failure"]):
        time.sleep(2)  # the failing rank waits
    hear(self, store)


if rank != os.environ.get("FAILING_RANK"):
    _meeting._Beats.hear = hear_late
begun = time.monotonic()
stream = stream_checkpoint(sys.argv[1], device="cpu", memory_bytes=1 << 20, process_group=dist.group.WORLD)
try:
    for _ in stream:
        if rank == os.environ.get("FAILING_RANK"):
            break
    else:
        sys.exit("all came")
except (RuntimeError, TimeoutError) as error:
    print(json.dumps([type(error).__name__, str(error), time.monotonic() - begun, logged]), flush=True)
    sys.stdin.read()
    os._exit(0)
raise ZeroDivisionError("in the end")
