"""transformers saves a model in shards, loads it through pagestream and trains it."""

import os
import sys

from installed import import_clients, names_opened

import_clients("transformers")
import numpy as np
import torch
import transformers

import pagestream

config = transformers.LlamaConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=True,
)
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(config).eval()
folder = sys.argv[1]
model.save_pretrained(folder, max_shard_size="100KB")
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
assert set(shards) <= names_opened(), (shards, names_opened())
weights = pagestream.open_checkpoint(folder)
state = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
for name in weights:
    assert np.array_equal(weights[name], state[name].numpy()), name
# Training writes to the loaded tensors, but the file must not change.
before = {name: weights[name].copy() for name in weights}
again = transformers.AutoModelForCausalLM.from_pretrained(folder)
optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
again(ids, labels=ids).loss.backward()
optimizer.step()
for name, array in before.items():
    assert np.array_equal(weights[name], array), name
again.save_pretrained(folder, max_shard_size="100KB")
print("well")
