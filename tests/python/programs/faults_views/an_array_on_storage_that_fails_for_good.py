"""An array on storage that fails permanently keeps its written pages, and an exception is raised."""

import sys
import time

import numpy as np

from pagestream import open_checkpoint
from pagestream.errors import MappedReadError
from pagestream.safetensors import safe_open

path, kind = sys.argv[1:]
kept = True
try:
    if kind == "writable":
        array = safe_open(path, "np", ahead=False).get_tensor("x")
        # Written pages belong to this process. After that, storage fails.
        for row in range(0, 4, 2):
            array[row, 0] = 7
    else:
        array = open_checkpoint(path, ahead=False)["x"]
        array[0, 0]
    total = int(array.sum(dtype=np.uint64))
    if kind == "writable":
        kept = array[0, 0] == array[2, 0] == 7
    for _ in range(100):
        time.sleep(0.01)
except MappedReadError:
    kept = kept and (kind != "writable" or array[0, 0] == 7)
    print("kept raised" if kept else "lost raised")
