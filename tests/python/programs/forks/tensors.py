"""A child takes tensors of a file from which a thread of its parent also takes them."""

import sys
import threading

import numpy as np
from forking import forked

from pagestream.safetensors import safe_open
from pagestream.safetensors.numpy import save_file

path = sys.argv[1] + "/weights.safetensors"
save_file({str(i): np.zeros(1000) for i in range(10)}, path)
statuses = []
for turn in range(150):
    with safe_open(path, "np") as file:
        thread = threading.Thread(target=lambda: [file.get_tensor(str(i)) for i in range(10)])
        thread.start()
        statuses.append(forked(lambda: [file.get_tensor(str(i)) for i in range(10)] and file.__exit__()))
        thread.join()
print(statuses.count(0), len(statuses))
