"""peft saves an adapter and loads it through pagestream."""

import copy
import sys

from installed import import_clients, names_opened

import_clients("transformers", "peft")
import peft
import torch
import transformers

config = transformers.LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
torch.manual_seed(0)
base = transformers.LlamaForCausalLM(config)
adapter = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
lora = peft.get_peft_model(copy.deepcopy(base), adapter)
lora.save_pretrained(sys.argv[1])
again = peft.PeftModel.from_pretrained(copy.deepcopy(base), sys.argv[1])
ids = torch.arange(16).reshape(2, 8)
assert torch.equal(lora.eval()(ids).logits, again.eval()(ids).logits)
assert "adapter_model.safetensors" in names_opened(), names_opened()
print("well")
