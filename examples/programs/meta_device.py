"""A checkpoint streamed into a module on the ``meta`` device.

    python meta_device.py model.safetensors

A module on the ``meta`` device has shapes but no memory. `load_into` gives each parameter its memory as its
bytes arrive, so that the host never holds the model twice.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn

from pagestream import open_checkpoint
from pagestream.errors import SafetensorError
from pagestream.torch import load_into


class Bare(nn.Module):
    """A module with the parameters of a checkpoint."""

    def __init__(self, path: str) -> None:
        super().__init__()
        with open_checkpoint(path) as weights:
            for name in weights:
                *parents, last = name.split(".")
                owner: nn.Module = self
                for parent in parents:
                    if parent not in owner._modules:  # noqa: SLF001 - builds a module by name
                        owner.add_module(parent, nn.Module())
                    owner = owner.get_submodule(parent)
                shape = weights.info(name).shape
                owner.register_parameter(last, nn.Parameter(torch.empty(shape), requires_grad=False))


def main() -> None:
    """Loads a checkpoint, and prints a report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", help="a safetensors file, a folder of them, or an index")
    parser.add_argument("--device", default="cpu", help="where the module goes (cpu)")
    arguments = parser.parse_args()
    try:
        with torch.device("meta"):
            model = Bare(arguments.checkpoint)
        device = torch.device(arguments.device)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch raises the last for an unknown device
        parser.error(str(error))
    with device:
        report = load_into(model, arguments.checkpoint, progress=True)
    count = sum(math.prod(parameter.shape) for parameter in model.parameters())
    print(f"{count:,} parameters; missing {list(report.missing)}, unexpected {list(report.unexpected)}")


if __name__ == "__main__":
    main()
