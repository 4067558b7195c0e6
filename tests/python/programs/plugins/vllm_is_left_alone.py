"""What `safetensors` is comes back: after a load, after one that is given up, and after one that fails."""

import sys

import safetensors
import safetensors.torch
from serving import vllm

folder = sys.argv[1]
upstream = safetensors.safe_open

_, weights = vllm(folder)
assert safetensors.safe_open is upstream
first = next(weights)
assert safetensors.safe_open is not upstream
weights.close()
assert safetensors.safe_open is upstream
assert first[1].sum().isfinite()

loader, _ = vllm(folder)
assert len(dict(loader._get_weights_iterator(loader.Source(folder, None)))) > 10
assert safetensors.safe_open is upstream

bad = loader._get_weights_iterator(loader.Source(f"{folder}/model-00001-of-00003.safetensors", None))
assert list(bad) == []
loader.load_config.load_format = "?"
try:
    next(loader._get_weights_iterator(loader.Source(folder, None)))
except AssertionError:
    assert safetensors.safe_open is upstream
    print("ok")
