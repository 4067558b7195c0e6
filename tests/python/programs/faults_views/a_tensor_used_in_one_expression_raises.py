"""A tensor that is used and dropped in one expression raises if its storage fails."""

import sys

import numpy as np

import pagestream
from pagestream.errors import MappedReadError
from pagestream.safetensors import numpy

path, use = sys.argv[1], sys.argv[2]
if use == "clone":
    from pagestream.safetensors import torch
out = np.empty(1 << 18, "f4")


def clone():
    return torch.load_file(path)["x"].clone()


USES = {
    "numpy": lambda: numpy.load_file(path)["x"] * 1,
    "copyto": lambda: np.copyto(out, numpy.load_file(path)["x"]),
    "checkpoint": lambda: pagestream.open_checkpoint(path)["x"] + 0,
    "clone": clone,
}
try:
    USES[use]()
    for _ in range(100):
        pass
except MappedReadError as error:
    print(error.filename == path, "its storage failed while" in str(error))
