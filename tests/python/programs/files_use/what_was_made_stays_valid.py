"""Objects made from a file stay valid until they die, and the file is unmapped then."""

import gc
import sys
import warnings

import numpy as np
import torch

from pagestream import MappedFile

warnings.simplefilter("ignore")  # torch warns that the memory cannot be written
path = sys.argv[1]


def append():
    open(path, "ab").write(b"more")


def view():
    return f.view()


MAKERS = {
    "ndarray": lambda: np.ndarray(70_001, "u1", f),
    "ndarray of a memoryview": lambda: np.ndarray(70_001, "u1", memoryview(f)),
    "torch": lambda: torch.frombuffer(f, dtype=torch.uint8),
    "frombuffer": lambda: np.frombuffer(f, "u1"),
    "view": view,
}
f = MappedFile(path)
made = MAKERS[sys.argv[2]]()
match sys.argv[3]:
    case "close":
        f.close()
    case "refresh":
        append()
        f.refresh()
    case "close after refresh":
        append()
        f.refresh()
        f.close()
    case "with":
        f.__exit__(None, None, None)
    case "delete":
        del f
        gc.collect()
others = [MappedFile(path) for _ in range(8)]  # these would reuse the address if the mapping were gone
print(bytes(memoryview(np.asarray(made))) == open(path, "rb").read()[:70_001])
del made, others
globals().pop("f", None)
gc.collect()
print(sum(path in line for line in open("/proc/self/maps")))
