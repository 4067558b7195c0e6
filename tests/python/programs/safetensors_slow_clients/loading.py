"""Ways to load weights: each uses a package's own code, which does not know pagestream.

``loading.py WAY FOLDER...``, run by ``forks.py install``.
"""

import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob


def digest(tensors):
    """Returns a digest of tensors by name. Tied tensors count once, under any of their names."""
    import torch

    found = {}
    for name, tensor in tensors.items():
        data = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
        found[name.replace("lm_head", "model.embed_tokens")] = hashlib.sha256(data).hexdigest()
    text = "".join(f"{name} {value}\n" for name, value in sorted(found.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def files(folder):
    return sorted(glob(os.path.join(folder, "*.safetensors")))


def transformers_from_pretrained(folder, **options):
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).state_dict()


def transformers_with_little_memory(folder):
    return transformers_from_pretrained(folder, low_cpu_mem_usage=True)


def diffusers_from_pretrained(folder):
    import diffusers

    return diffusers.UNet2DModel.from_pretrained(folder).state_dict()


def accelerate_dispatches(folder):
    """Returns the tensors of a model on `meta` that accelerate fills."""
    import accelerate
    import transformers

    with accelerate.init_empty_weights():
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    model.tie_weights()
    return accelerate.load_checkpoint_and_dispatch(model, folder, device_map={"": "cpu"}).state_dict()


def accelerate_opens_for_each_tensor(folder):
    """Returns the tensors of accelerate's loader for offloaded weights: it opens a file for each."""
    import json

    from accelerate.utils import OffloadedWeightsLoader

    with open(os.path.join(folder, "model.safetensors.index.json")) as file:
        by_name = json.load(file)["weight_map"]
    index = {
        name: {"safetensors_file": os.path.join(folder, path), "weight_name": name, "dtype": "float32"}
        for name, path in by_name.items()
    }
    loader = OffloadedWeightsLoader(index=index, save_folder=None)
    return {name: loader[name] for name in by_name}


def torchs_checkpoint_reader(folder):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    metadata = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
    state = {name: torch.zeros(each.size, dtype=each.properties.dtype) for name, each in metadata.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)
    return state


def peft_loads_an_adapter(folder):
    import peft

    return peft.utils.load_peft_weights(folder, device="cpu")


def as_vllm(folder):
    """Loads like vLLM 0.33's `safetensors_weights_iterator`: one tensor after another, copied at once."""
    from safetensors import safe_open

    found = {}
    for path in files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - as in vLLM
                found[name] = file.get_tensor(name).clone()
    return found


def as_sglang(folder):
    """Loads like SGLang 0.5.23's `buffered_multi_thread_safetensors_weights_iterator`: files in threads."""
    import safetensors.torch

    found = {}
    with ThreadPoolExecutor(4) as pool:
        for tensors in pool.map(lambda path: safetensors.torch.load_file(path, device="cpu"), files(folder)):
            found.update(tensors)
    return found


def as_a_rank_of_transformers(folder):
    """Takes slices like tensor parallelism in transformers 5: all slices first, then reads in threads."""
    import torch
    from safetensors import safe_open

    handles = [safe_open(path, framework="pt", device="cpu") for path in files(folder)]
    slices = {name: handle.get_slice(name) for handle in handles for name in handle.offset_keys()}

    def part(item):
        name, tensor = item
        shape = tensor.get_shape()
        halves = []
        for rank in range(2):
            if len(shape) == 1:
                return name, tensor[...]
            middle = shape[0] // 2
            halves.append(tensor[:middle] if rank == 0 else tensor[middle:])
        return name, torch.cat(halves)

    with ThreadPoolExecutor(4) as pool:
        return dict(pool.map(part, slices.items()))


if __name__ == "__main__":
    way, *folders = sys.argv[1:]
    for each in folders:
        print(digest(globals()[way](each)))
