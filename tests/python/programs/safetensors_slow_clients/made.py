"""Writes a model's files, each large enough for read-ahead. Prints the digest of its tensors."""

import sys
import warnings

from loading import digest

warnings.simplefilter("ignore")
kind, folder = sys.argv[1:]
import torch

torch.manual_seed(0)
if kind == "llama":
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size="32MB")
    tensors = model.state_dict()
else:
    import diffusers

    model = diffusers.UNet2DModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(192, 384),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    model.save_pretrained(folder)
    tensors = model.state_dict()
print(digest(tensors))
