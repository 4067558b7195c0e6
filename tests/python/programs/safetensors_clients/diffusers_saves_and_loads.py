"""diffusers saves a model and loads it through pagestream."""

import sys

from installed import import_clients, names_opened

import_clients("diffusers")
import diffusers
import torch

torch.manual_seed(0)
model = diffusers.UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
).eval()
model.save_pretrained(sys.argv[1])
again = diffusers.UNet2DModel.from_pretrained(sys.argv[1]).eval()
for name, tensor in model.state_dict().items():
    assert torch.equal(tensor, again.state_dict()[name]), name
noise = torch.randn(1, 1, 8, 8)
# With upstream's reader too, rounding in a convolution depends on the address of its weights.
assert torch.allclose(model(noise, 3).sample, again(noise, 3).sample, atol=1e-5)
assert "diffusion_pytorch_model.safetensors" in names_opened(), names_opened()
print("well")
