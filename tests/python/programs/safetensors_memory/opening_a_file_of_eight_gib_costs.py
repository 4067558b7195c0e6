"""Opening a file of 8 GiB takes only the memory of its header."""

import sys

from counting import status

from pagestream.safetensors import safe_open

safe_open(sys.argv[1], "np")
before = status("VmRSS")
file = safe_open(sys.argv[1], "np")
array = file.get_tensor("t")
print(status("VmRSS") - before, array.shape)
