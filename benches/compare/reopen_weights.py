"""Reopens a file for each of its first tensors, and prints the costs.

    reopen_weights.py pagestream|safetensors FRAMEWORK PATH COUNT

Prints JSON: total seconds, and the sum of each tensor.
"""

import json
import sys
import time

import numpy as np


def main() -> None:
    way, framework, path = sys.argv[1:4]
    if way == "pagestream":
        from pagestream.safetensors import safe_open
    else:
        from safetensors import safe_open
    if framework == "pt":
        import torch  # noqa: F401 - importing it is not part of the comparison
    sums = []
    begun = time.perf_counter()
    for number in range(int(sys.argv[4])):
        with safe_open(path, framework=framework) as file:
            tensor = file.get_tensor(f"model.layers.{number // 10}.part.{number % 10}.weight")
        sums.append(float(np.asarray(tensor).sum(dtype=np.float64)))
    print(json.dumps({"seconds": time.perf_counter() - begun, "sums": sums}))


if __name__ == "__main__":
    main()
