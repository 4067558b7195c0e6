"""torch's tensors of every type that a file may have, and their comparison bit for bit."""

import torch

from pagestream.weights.dtypes import NAMES


def of_every_type(rng):
    """Returns a tensor of each type by its name, of shape (20, 30), an empty one, and a scalar."""
    found = {}
    for name in NAMES.values():
        kind = getattr(torch, name, None)
        if kind is not None:
            content = rng.integers(0, 2 if name == "bool" else 256, 600 * kind.itemsize, "u1")
            found[name] = torch.from_numpy(content).view(kind).view(20, 30)
    return found | {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.5)}


def same_bits(found, expected):
    """Asserts that a tensor, on whatever device, is another one."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    one, other = (each.cpu().contiguous().reshape(-1).view(torch.uint8) for each in (found, expected))
    assert torch.equal(one, other)
