"""One of several ranks that load ``FOLDER`` three times and exit at once.

The rank that hosts the group's store leaves the last load first. ``STORE`` is the address of another store.
"""

import os
import sys
import time

import torch.distributed as dist

from pagestream.torch import load_state_dict
from pagestream.torch._meeting import Meeting

store = os.environ.get("STORE")
if store is None:
    dist.init_process_group("gloo")
else:
    place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("gloo", init_method=store, **place)
rank = dist.get_rank()
look = Meeting._look


def slow_look(self, keys):
    if rank and is_last and self.may_leave and keys[0].startswith("go/"):
        while not self._ask(lambda store: store.check(["left"])):
            time.sleep(0.01)
    return look(self, keys)


Meeting._look = slow_look
kept = dist.distributed_c10d._get_default_store()
kept.set(f"kept{rank}", "")
for number in range(3):
    is_last = number == 2
    load_state_dict(sys.argv[1], process_group=dist.group.WORLD)
if store is not None:
    dist.barrier()
    assert kept.check(["kept0", "kept1", "kept2"]), "the file was another one meanwhile"
print("done", flush=True)
if store is None:
    # The process group is not destroyed, so no rank waits for the others.
    os._exit(0)
dist.destroy_process_group()
