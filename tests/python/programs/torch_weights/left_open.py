"""Ends with a stream to a device that is neither used up nor closed."""

import sys

import torch

from pagestream.torch import stream_checkpoint, weights
from pagestream.torch._device import CopyDevice

weights.copy_device = lambda _: CopyDevice(torch.device("cpu"))
stream = stream_checkpoint(sys.argv[1], device="cpu", memory_bytes=4 << 20)
print(next(stream)[0])
