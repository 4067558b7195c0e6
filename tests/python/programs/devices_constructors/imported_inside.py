"""Imports pagestream while torch's constructors are replaced, and loads tensors then and later."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.torch_constructors import accelerate_init_empty_weights, deepspeed_zero_init


def load():
    from pagestream.safetensors import safe_open

    with safe_open(sys.argv[1], "pt", copy=True) as file:
        tensor = file.get_tensor("matrix")
        print(tensor.dtype, tensor.device, tensor.sum().item())


with deepspeed_zero_init(), accelerate_init_empty_weights():
    load()
load()
