"""torch tensors from the bytes of files, on the CPU and on devices. `safetensors/` and `torch/` use them."""
