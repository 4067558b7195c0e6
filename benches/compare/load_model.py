"""Loads a model with a program that does not know pagestream, uses all bytes, and prints the costs.

    load_model.py WAY FOLDER [--evict]

WAY is one of `WAYS`, with or without ", installed". Prints JSON: total seconds, seconds until the model was
loaded, and a sum over all bytes of each parameter.
"""

import contextlib
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from cold import touch_memory
from load_weights import read_and_evict, used

INSTALLED = ", installed"


def by_transformers(folder: Path) -> torch.nn.Module:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def by_accelerate(folder: Path) -> torch.nn.Module:
    import accelerate
    import transformers

    with accelerate.init_empty_weights():
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_config(config)
    return accelerate.load_checkpoint_and_dispatch(model, folder, device_map={"": "cpu"})


WAYS: dict[str, Callable[[Path], torch.nn.Module]] = {
    "transformers, from_pretrained": by_transformers,
    "accelerate, load_checkpoint_and_dispatch": by_accelerate,
}


def main(way: str, folder: Path, *, evicts: bool) -> None:
    warnings.simplefilter("ignore")
    if way.endswith(INSTALLED):
        import pagestream.safetensors

        pagestream.safetensors.install()
    with contextlib.redirect_stdout(sys.stderr):
        import accelerate  # noqa: F401 - importing the libraries is not part of the comparison
        from transformers.models.llama import modeling_llama  # noqa: F401

        if evicts:
            read_and_evict(folder)
        touch_memory()
        begun = time.perf_counter()
        model = WAYS[way.removesuffix(INSTALLED)](folder)
        first = time.perf_counter() - begun
        with torch.no_grad():
            sums = {name: used(parameter) for name, parameter in model.named_parameters()}
        seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "first_seconds": first, "sums": sums}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), evicts="--evict" in sys.argv)
