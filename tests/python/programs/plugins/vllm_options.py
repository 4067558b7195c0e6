"""Options of vLLM's loader: pagestream's, vLLM's, and unknown ones."""

import sys

from serving import vllm

folder = sys.argv[1]


def refusal(**options):
    try:
        vllm(folder, **options)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


assert refusal(model_loader_extra_config={"ahead": 1 << 20}) == "accepted"
assert refusal(model_loader_extra_config={"ahead": False, "num_threads": 2}) == "accepted"
assert refusal(safetensors_load_strategy="lazy") == "accepted"
assert refusal(model_loader_extra_config={"ahead": True}).startswith("TypeError: ahead must be False or")
assert refusal(model_loader_extra_config={"ahead": 0}).startswith("ValueError: ahead must be at least 1")
assert "nexpected extra config keys" in refusal(model_loader_extra_config={"bahead": 1})
for strategy in ("eager", "prefetch"):
    told = refusal(safetensors_load_strategy=strategy)
    assert repr(strategy) in told and "leave the option out" in told, told
loader, _ = vllm(folder, safetensors_load_strategy="torchao")
assert loader.load_config.safetensors_load_strategy == "torchao"

loader, weights = vllm(folder, model_loader_extra_config={"ahead": 1 << 20, "num_threads": 2})
assert loader.load_config.model_loader_extra_config == {"num_threads": 2}
from pagestream.safetensors import _defaults

next(weights)
assert [each.ahead for each in _defaults.installed] == [1 << 20]
print("ok")
