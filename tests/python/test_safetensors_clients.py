"""Code that is not ours, on ours: what reads and writes safetensors in the packages that people use."""

from __future__ import annotations

import pytest

from support.process import output_of

pytestmark = pytest.mark.timeout(300)

# Whether the client was imported before `install` or after it.
EARLY = "import pagestream.safetensors as ours; ours.install(); import torch; {imports}"
LATE = "import torch; {imports}; import pagestream.safetensors as ours; ours.install()"
every_order = pytest.mark.parametrize("order", [EARLY, LATE], ids=["installed first", "installed last"])

COUNTED = """
import warnings; warnings.simplefilter("ignore")
import sys
opened = []
sys.addaudithook(lambda event, arguments: opened.append(arguments[0]) if event == "pagestream.open" else None)
"""


def run(order, imports, code, *arguments):
    """What `code` prints; it must have opened files by way of ours."""
    whole = COUNTED + order.format(imports=imports) + "\n" + code
    environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return output_of(whole, *arguments, timeout_seconds=280, **environment).splitlines()[-1]


TRANSFORMERS = """
config = transformers.LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True)
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(config).eval()
folder = sys.argv[1]
model.save_pretrained(folder, max_shard_size="100KB")
import os
shards = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
assert len(shards) > 2, shards
ids = torch.arange(32).reshape(2, 16)
expected = model(ids).logits
for options in ({}, {"low_cpu_mem_usage": True}, {"device_map": "cpu"}):
    again = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    assert torch.equal(again(ids).logits, expected), options
again = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
for name, tensor in again.state_dict().items():
    assert torch.equal(tensor, model.state_dict()[name].to(torch.bfloat16)), name
names = {os.path.basename(os.fsdecode(path)) for path in opened}
assert set(shards) <= names, (shards, names)
import numpy as np, pagestream
weights = pagestream.open_checkpoint(folder)
state = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
for name in weights:
    assert np.array_equal(weights[name], state[name].numpy()), name
# Training writes to what was loaded: the file must stay.
before = {name: weights[name].copy() for name in weights}
again = transformers.AutoModelForCausalLM.from_pretrained(folder)
optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
again(ids, labels=ids).loss.backward()
optimizer.step()
for name, array in before.items():
    assert np.array_equal(weights[name], array), name
again.save_pretrained(folder, max_shard_size="100KB")
print("well")
"""


@every_order
def test_transformers_saves_in_shards_loads_and_trains(tmp_path, order):
    assert run(order, "import transformers", TRANSFORMERS, tmp_path) == "well"


PEFT = """
config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32)
torch.manual_seed(0)
base = transformers.LlamaForCausalLM(config)
import copy
lora = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(target_modules=["q_proj", "v_proj"],
    init_lora_weights=False))
lora.save_pretrained(sys.argv[1])
again = peft.PeftModel.from_pretrained(copy.deepcopy(base), sys.argv[1])
ids = torch.arange(16).reshape(2, 8)
assert torch.equal(lora.eval()(ids).logits, again.eval()(ids).logits)
import os
assert "adapter_model.safetensors" in {os.path.basename(os.fsdecode(path)) for path in opened}, opened
print("well")
"""


@every_order
def test_peft_saves_and_loads_an_adapter(tmp_path, order):
    assert run(order, "import transformers, peft", PEFT, tmp_path) == "well"


DIFFUSERS = """
torch.manual_seed(0)
model = diffusers.UNet2DModel(sample_size=8, in_channels=1, out_channels=1, layers_per_block=1,
    block_out_channels=(8, 16), norm_num_groups=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D")).eval()
model.save_pretrained(sys.argv[1])
again = diffusers.UNet2DModel.from_pretrained(sys.argv[1]).eval()
for name, tensor in model.state_dict().items():
    assert torch.equal(tensor, again.state_dict()[name]), name
noise = torch.randn(1, 1, 8, 8)
# Not equal: how a convolution rounds depends on where its weights lie, with upstream's reader too.
assert torch.allclose(model(noise, 3).sample, again(noise, 3).sample, atol=1e-5)
import os
names = {os.path.basename(os.fsdecode(path)) for path in opened}
assert "diffusion_pytorch_model.safetensors" in names, names
print("well")
"""


def test_diffusers_saves_and_loads_a_model(tmp_path):
    assert run(EARLY, "import diffusers", DIFFUSERS, tmp_path) == "well"


ACCELERATE = """
import os
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x
torch.manual_seed(0)
model, x = Model().eval(), torch.randn(3, 64)
from huggingface_hub import save_torch_model
save_torch_model(model, sys.argv[1], max_shard_size="40KB")
with init_empty_weights():
    empty = Model()
device_map = {"layers.0": "cpu", "layers.1": "disk", "layers.2": "cpu", "layers.3": "disk"}
loaded = load_checkpoint_and_dispatch(empty, sys.argv[1], device_map=device_map, offload_folder=sys.argv[2])
assert torch.equal(loaded.eval()(x), model(x))
assert str(loaded.layers[1].weight.device) == "meta"
shards = {name for name in os.listdir(sys.argv[1]) if name.endswith(".safetensors")}
assert len(shards) > 1 and shards <= {os.path.basename(os.fsdecode(path)) for path in opened}, opened
print("well")
"""


@every_order
def test_accelerate_dispatches_with_offload_to_disk(tmp_path, order):
    folder, offload = tmp_path / "model", tmp_path / "offload"
    folder.mkdir()
    assert run(order, "import accelerate", ACCELERATE, folder, offload) == "well"


HUB = """
from huggingface_hub import load_torch_model, save_torch_model
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
save_torch_model(model, sys.argv[1])
again = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
load_torch_model(again, sys.argv[1], strict=True)
for name, tensor in model.state_dict().items():
    assert torch.equal(again.state_dict()[name], tensor)
assert opened
print("well")
"""


def test_huggingface_hub_saves_and_loads_a_model(tmp_path):
    assert run(EARLY, "import huggingface_hub", HUB, tmp_path) == "well"


DCP = """
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
tensors = {"a": torch.randn(64, 8), "b": torch.arange(5.0)}
save_file(tensors, sys.argv[1] + "/model.safetensors")
state = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(sys.argv[1]), no_dist=True)
assert all(torch.equal(state[name], tensor) for name, tensor in tensors.items())
assert opened
print("well")
"""


def test_torchs_checkpoint_reader_reads_by_ours(tmp_path):
    assert run(EARLY, "import torch.distributed.checkpoint", DCP, tmp_path) == "well"
