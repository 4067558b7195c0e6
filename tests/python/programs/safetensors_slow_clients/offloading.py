"""Runs a model whose offloaded layers accelerate reads from disk for each forward pass. Prints digests.

    offloading.py accelerate|transformers OFFLOAD_FOLDER FOLDER SLOW_FOLDER...

The slow folders follow after `install`.
"""

import hashlib
import sys
import warnings

warnings.simplefilter("ignore")


def device_map(layers):
    """Returns the places of modules: the embedding and half of the layers on the CPU, the rest on disk."""
    places = {f"model.layers.{number}": "cpu" if number < layers // 2 else "disk" for number in range(layers)}
    return {
        "model.embed_tokens": "cpu",
        "model.rotary_emb": "cpu",
        "model.norm": "disk",
        "lm_head": "cpu",
        **places,
    }


def by_accelerate(folder, offload_folder):
    import accelerate
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    with accelerate.init_empty_weights():
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return accelerate.load_checkpoint_and_dispatch(
        model, folder, device_map=device_map(config.num_hidden_layers), offload_folder=offload_folder
    )


def by_transformers(folder, offload_folder):
    import transformers

    layers = transformers.AutoConfig.from_pretrained(folder).num_hidden_layers
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, device_map=device_map(layers), offload_folder=offload_folder
    )


def run(kind, folder, offload_folder):
    import torch

    torch.manual_seed(0)
    model = {"accelerate": by_accelerate, "transformers": by_transformers}[kind](folder, offload_folder)
    is_on_disk = [name for name, parameter in model.named_parameters() if parameter.device.type == "meta"]
    assert len(is_on_disk) > 20, is_on_disk
    with torch.no_grad():
        logits = [model(torch.arange(10 * turn, 10 * turn + 8)[None]).logits for turn in range(2)]
    print(hashlib.sha256(torch.cat(logits).numpy().tobytes()).hexdigest())


if __name__ == "__main__":
    kind, offload_folder, folder, *slow_folders = sys.argv[1:]
    run(kind, folder, offload_folder)
    import pagestream.safetensors

    pagestream.safetensors.install()
    for number, slow_folder in enumerate(slow_folders):
        run(kind, slow_folder, f"{offload_folder}{number}")
