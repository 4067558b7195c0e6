"""Dies by SIGSEGV: after a write to an array on read-only pages, or for another reason.

Usage: a_write_to_read_only_memory.py FILE {array,corpus,file,elsewhere,by hand} [faulthandler | later]
"""

import ctypes
import faulthandler
import os
import resource
import signal
import sys

import numpy as np

import pagestream
from pagestream.safetensors import safe_open

path, way = sys.argv[1:3]
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if "faulthandler" in sys.argv:
    faulthandler.enable()
read = pagestream.MappedFile(path, mode="read")
assert read.view(0, 8) == open(path, "rb").read(8)
weights = pagestream.open_checkpoint(path, mmap_mode="shared")
arrays = {
    "array": weights["x"],
    "tensor": safe_open(path, "np", mmap_mode="shared").get_tensor("x"),
    "corpus": pagestream.open_tokens(path, dtype="u2", format="raw", mmap_mode="shared")[100:],
    "file": np.frombuffer(pagestream.MappedFile(path, mode="shared"), "u1"),
}
assert not any(array.flags.writeable for array in arrays.values())
if "later" in sys.argv:
    faulthandler.enable()
if way in arrays:
    ctypes.memset(arrays[way].ctypes.data, 0, 8)
elif way == "elsewhere":
    ctypes.memset(8, 0, 8)
else:
    os.kill(os.getpid(), signal.SIGSEGV)
print("still alive")
