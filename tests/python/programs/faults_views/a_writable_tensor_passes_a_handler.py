"""A writable tensor of a new file moves our handler in front of a later one."""

import os
import sys

from handlers import HANDLERS

from pagestream.errors import MappedReadError
from pagestream.safetensors import safe_open

first, second = (f"{sys.argv[1]}/{name}" for name in ("first", "second"))
safe_open(first, "np").get_tensor("x")
HANDLERS[sys.argv[2]]()
tensor = safe_open(second, "np").get_tensor("x")
os.truncate(second, 4096)
try:
    tensor.sum()
    for _ in range(100):
        pass
except MappedReadError as error:
    print(error.filename == second)
