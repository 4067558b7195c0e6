"""In "read" mode, memory grows with the requested tensors."""

import sys

from counting import status

from pagestream.safetensors import safe_open

file = safe_open(sys.argv[1], "np", mmap_mode="read")
before = status("RssAnon")
rows = file.get_slice("7")[:1000]
with_rows = status("RssAnon") - before
one = file.get_tensor("5")
print(with_rows, status("RssAnon") - before)
