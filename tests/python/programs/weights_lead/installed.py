"""Uses only upstream's names, after `install`. Prints the sum of all bytes."""

import sys

import pagestream.safetensors

pagestream.safetensors.install(ahead=None if sys.argv[2] == "None" else False)

from safetensors import safe_open

with safe_open(sys.argv[1], framework="np") as file:
    print(sum(int(file.get_tensor(name).sum(dtype="u8")) for name in file.keys()))  # noqa: SIM118
