"""Uses every tensor of a checkpoint as a NumPy array."""

from using import folder, use_by

from pagestream import open_checkpoint
from pagestream.safetensors import safe_open


def by_stream(mmap_mode=None, **options):
    with open_checkpoint(folder, mmap_mode=mmap_mode) as weights:
        yield from weights.stream(**options)


def by_name(**options):
    with open_checkpoint(folder, **options) as weights:
        for name in weights:
            yield name, weights[name]


def by_warm():
    with open_checkpoint(folder) as weights, weights.warm():
        for name in weights:
            yield name, weights[name]


def by_safe_open(**options):
    for path in sorted(folder.iterdir()):
        with safe_open(path, "np", **options) as file:
            for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                yield name, file.get_tensor(name)


use_by(globals())
