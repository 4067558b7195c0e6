"""The original `safetensors` returns after a load, after an abandoned load, and after a failed one."""

import sys

from serving import is_installed, vllm

folder = sys.argv[1]

_, weights = vllm(folder)
assert not is_installed()
first = next(weights)
assert is_installed()
weights.close()
assert not is_installed()
assert first[1].sum().isfinite()

loader, _ = vllm(folder)
assert len(dict(loader._get_weights_iterator(loader.Source(folder, None)))) > 10
assert not is_installed()

loader.load_config.load_format = "?"
try:
    next(loader._get_weights_iterator(loader.Source(folder, None)))
except (AssertionError, ValueError):
    assert not is_installed()
    print("ok")
