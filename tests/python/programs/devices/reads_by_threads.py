"""Reads a cached tensor of 8 MB for a device, which is the CPU, by so many threads at most."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from pagestream.devices import device_tensors
from pagestream.safetensors import _open, safe_open

from support.late_device import LateDevice

path, threads = sys.argv[1], int(sys.argv[2])
Path(path).read_bytes()
with safe_open(path, "pt") as file:
    expected = file.get_tensor("large")
late = LateDevice(delay=0)
device_tensors.DeviceTensors._staged_for = lambda *_: late
device_tensors.first_threads = lambda: threads
_open.framework_on = lambda *_, **__: device_tensors.DeviceTensors(torch.device("cpu"))
with safe_open(path, "pt", "cuda", ahead=False) as file:
    print("same" if torch.equal(file.get_tensor("large"), expected) else "other bytes")
