"""Loads a cached 8 MB tensor for a device, which is the CPU: ``reads_by_threads.py PATH THREADS…``."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from pagestream.devices import device_tensors
from pagestream.safetensors import _open, safe_open

from support.late_device import LateDevice

path, *numbers = sys.argv[1:]
Path(path).read_bytes()
with safe_open(path, "pt") as file:
    expected = file.get_tensor("large")
late = LateDevice(delay=0)
device_tensors.DeviceTensors._staged_for = lambda *_: late
_open.framework_on = lambda *_, **__: device_tensors.DeviceTensors(torch.device("cpu"))


def load(threads):
    device_tensors.first_threads = lambda: threads
    with safe_open(path, "pt", "cuda", ahead=False) as file:
        return file.get_tensor("large")


load(1)  # starts the threads that exist until the process ends
for number in map(int, numbers):
    os.access(f"begins-{number}", os.F_OK)
    found = load(number)
    os.access(f"ends-{number}", os.F_OK)
    print("same" if torch.equal(found, expected) else "other bytes")
