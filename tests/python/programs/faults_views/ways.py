"""Opens a safetensors file and takes a tensor from it, in each of the available ways."""

import pagestream
from pagestream.safetensors import safe_open


def load_file(path):
    import pagestream.safetensors.torch

    return pagestream.safetensors.torch.load_file(path)


def tensor_of(opened):
    return opened.get_tensor("x")


def item_of(opened):
    return opened["x"]


def slice_of(opened):
    return opened.get_slice("x")[10:]


# For each way, a function that opens the file, and one that takes the tensor from it.
WAYS = {
    "numpy": (lambda path: safe_open(path, "np"), tensor_of),
    "torch": (lambda path: safe_open(path, "pt"), tensor_of),
    "load_file": (load_file, item_of),
    "checkpoint": (pagestream.open_checkpoint, item_of),
    "slice": (lambda path: safe_open(path, "np"), slice_of),
    "torch slice": (lambda path: safe_open(path, "pt"), slice_of),
}
