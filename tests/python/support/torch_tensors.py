"""torch tensors of every type that a file may have, and bit-for-bit comparisons."""

import torch

from pagestream.weights.dtypes import NAMES


def of_every_type(rng):
    """Returns a tensor of shape (20, 30) by the name of each type, an empty tensor, and a scalar."""
    found = {}
    for name in NAMES.values():
        kind = getattr(torch, name, None)
        if kind is not None:
            content = rng.integers(0, 2 if name == "bool" else 256, 600 * kind.itemsize, "u1")
            found[name] = torch.from_numpy(content).view(kind).view(20, 30)
    return found | {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.5)}


def same_bits(found, expected):
    """Asserts that two tensors on any devices have the same bits."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    one, other = (each.cpu().contiguous().reshape(-1).view(torch.uint8) for each in (found, expected))
    assert torch.equal(one, other)
