"""Pages written beside an unreadable page stay."""

import sys

from pagestream.errors import MappedReadError
from pagestream.safetensors import safe_open

path = sys.argv[1]
x = safe_open(path, "np").get_tensor("x").reshape(-1, 1024)
x[95:98] = 7
x[103:106] = 8
try:
    x[100].sum()
    for _ in range(100):
        pass
except MappedReadError as error:
    print(bool((x[96] == 7).all() and (x[104] == 8).all() and (x[100, 512:] == 0).all()))
