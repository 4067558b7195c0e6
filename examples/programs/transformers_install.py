"""`transformers` after `install()`: writes a small model, and loads it with and without pagestream.

python transformers_install.py
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import pagestream.safetensors


def main() -> None:
    """Loads a model with and without pagestream, and compares."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=512)).save_pretrained(folder)
        theirs = GPT2LMHeadModel.from_pretrained(folder)
        with pagestream.safetensors.install():
            ours = GPT2LMHeadModel.from_pretrained(folder)
            print(f"from_pretrained used {ours_module()}")
    for (name, one), other in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert torch.equal(one, other), name
    print(f"{ours.num_parameters():,} parameters are equal")


def ours_module() -> str:
    """Returns the package that ``import safetensors`` imports."""
    import safetensors

    return safetensors.safe_open.__module__.split(".")[0]


if __name__ == "__main__":
    main()
