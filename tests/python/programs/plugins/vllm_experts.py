"""vLLM's expert filter, its prefixes and its tensor class remain in effect."""

import tempfile

import torch
from safetensors.torch import save_file
from serving import vllm

folder = tempfile.mkdtemp()
names = ["norm.weight"] + [f"layers.0.experts.{number}.up.weight" for number in range(4)]
save_file({name: torch.full((256, 1024), float(len(name))) for name in names}, f"{folder}/model.safetensors")
loader, _ = vllm(folder)
loader.local_expert_ids = {1, 3}
weights = dict(loader._get_weights_iterator(loader.Source(folder, None, prefix="draft.")))
assert sorted(weights) == [f"draft.{names[2]}", f"draft.{names[4]}", f"draft.{names[0]}"]
assert all(type(each) is torch.Tensor and each.device.type == "cpu" for each in weights.values())
assert float(weights["draft.norm.weight"].sum()) == 256 * 1024 * len("norm.weight")
print("ok")
