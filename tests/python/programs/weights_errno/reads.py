"""Reads all tensors of a checkpoint in one of several ways. Prints whether they are right, or the error."""

import errno
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from pagestream import open_checkpoint
from pagestream.errors import MappedReadError
from pagestream.safetensors import safe_open

path, way = sys.argv[1:]


def by_warm():
    with open_checkpoint(path, mmap_mode="read") as weights, weights.warm() as warming:
        warming.wait()
        yield from weights.items()


def by_safe_open():
    with safe_open(path, "np", copy=True, ahead=False) as file:
        for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
            yield name, file.get_tensor(name)


def by_staging():
    import torch

    from pagestream.devices import copy_device
    from pagestream.torch import stream_checkpoint

    copy_device.staged_for = lambda _: copy_device.CopyDevice(torch.device("cpu"))
    for name, tensor in stream_checkpoint(path, device="cpu"):
        yield name, tensor.numpy()


WAYS = {"warm": by_warm, "safe_open": by_safe_open, "staging": by_staging}
pairs = WAYS[way]() if way in WAYS else open_checkpoint(path).stream(strategy=way, threads=2)
right = 0
try:
    for name, array in pairs:
        right += np.array_equal(array, np.full(array.shape, int(name), "u1"))
    print(f"{right} are right")
except MappedReadError as error:
    is_inside = 0 < error.offset < Path(path).stat().st_size
    print(f"MappedReadError {errno.errorcode[error.errno]} {is_inside} {error.filename == path}")
