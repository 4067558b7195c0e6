"""Uses tensors of a checkpoint as torch tensors."""

import torch
from torch import nn
from using import folder, use_by

from pagestream.safetensors import safe_open
from pagestream.torch import load_into, stream_checkpoint

from support.large_checkpoint import name_of, nbytes_of


def by_stream(**options):
    return stream_checkpoint(folder, device="cpu", **options)


def by_safe_open(**options):
    for path in sorted(folder.iterdir()):
        with safe_open(path, "pt", **options) as file:
            for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                yield name, file.get_tensor(name)


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        empty = torch.zeros(nbytes_of(number) // 8, dtype=torch.int64)
        self.weight = nn.Parameter(empty, requires_grad=False)


def by_load_into(device, numbers, **options):
    """Fills a model that has some of the layers."""
    names = [name_of(number) for number in numbers]
    with torch.device(device):
        layers = {name.split(".")[1]: Layer(number) for name, number in zip(names, numbers, strict=True)}
    model = nn.ModuleDict({"layers": nn.ModuleDict(layers)})
    load_into(model, folder, plan=names, **options)
    yield from model.state_dict().items()


use_by(globals())
