"""Forks during a stream to a device. The child may not use it, and the parent's stream continues."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from pagestream.devices import copy_device
from pagestream.safetensors.torch import load_file
from pagestream.torch import stream_checkpoint

from support.late_device import LateDevice

late = LateDevice(delay=0.001)
copy_device.staged_for = lambda _: late
stream = stream_checkpoint(sys.argv[1], device="cpu", memory_bytes=4 << 20)
found = dict([next(stream)])
child = os.fork()
if child == 0:
    # In the child, the simulated device has no thread, so nothing may wait for it.
    try:
        next(stream)
    except ValueError as error:
        print("told" if "forked" in str(error) else error, flush=True)
    stream.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
found.update(stream)
late.synchronize()
expected = load_file(sys.argv[1])
print("same" if all(torch.equal(found[name], expected[name]) for name in expected) else "different")
