"""The alignment of tensors: a view and a copy have the same address, modulo a cache line.

Libraries choose kernels by alignment, and kernels round differently. A program therefore gets the same bits
from a weight however it was loaded.
"""

import itertools
import json
import struct

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everyone calls it

import pagestream
import pagestream.safetensors.numpy
import pagestream.safetensors.torch
from pagestream.safetensors import safe_open
from pagestream.torch import load_into, load_state_dict, stream_checkpoint

pytestmark = pytest.mark.frameworks
CACHE_LINE_BYTES = 64
SHAPES = {"weight": (65, 129), "bias": (65,), "scale": (3, 5)}


@pytest.fixture(scope="module", params=[8, 24, 60])
def place(request):
    """The address of the first tensor in its file, modulo a cache line."""
    return request.param


@pytest.fixture(scope="module")
def path(place, tmp_path_factory):
    generator = np.random.default_rng(0)
    arrays = {name: generator.standard_normal(shape, "f4") for name, shape in SHAPES.items()}
    arrays["scale"] = arrays["scale"].astype("f2")
    header, first = {}, 0
    for name, array in arrays.items():
        offsets = [first, first + array.nbytes]
        header[name] = {"dtype": f"F{8 * array.itemsize}", "shape": array.shape, "data_offsets": offsets}
        first += array.nbytes
    text = json.dumps(header)
    text += " " * ((place - 8 - len(text)) % CACHE_LINE_BYTES)
    path = tmp_path_factory.mktemp("alignment") / "model.safetensors"
    data = b"".join(array.tobytes() for array in arrays.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + data)
    return path


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, shape in SHAPES.items():
            dtype = torch.float16 if name == "scale" else torch.float32
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, dtype=dtype)))


def module(path, **options):
    with torch.device("meta"):
        model = Model()
    load_into(model, path, **options)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def opened(path, framework, **options):
    with safe_open(path, framework, **options) as file:
        return {name: file.get_tensor(name) for name in SHAPES}


def in_slices(path, framework, **options):
    with safe_open(path, framework, **options) as file:
        return {name: file.get_slice(name)[...] for name in SHAPES}


def twice(path):
    """A second request for an array is a copy."""
    with safe_open(path, "np") as file:
        first, second = ({name: file.get_tensor(name) for name in SHAPES} for _ in range(2))
    assert not any(np.shares_memory(first[name], second[name]) for name in first)
    return second


STRATEGIES = ["mapped", "ahead", "pread", "direct"]
WAYS = {
    "open_checkpoint": lambda path: dict(pagestream.open_checkpoint(path)),
    "open_checkpoint, read": lambda path: dict(pagestream.open_checkpoint(path, mmap_mode="read")),
    "Checkpoint.read": lambda path: {name: pagestream.open_checkpoint(path).read(name) for name in SHAPES},
    "load_file": pagestream.safetensors.torch.load_file,
    "load_file, copy": lambda path: pagestream.safetensors.torch.load_file(path, copy=True),
    "numpy.load_file": pagestream.safetensors.numpy.load_file,
    "numpy.load_file, copy": lambda path: pagestream.safetensors.numpy.load_file(path, copy=True),
    "twice": twice,
    "load_state_dict": load_state_dict,
    "load_into": module,
    "load_into, assign": lambda path: module(path, assign=True),
    **{
        f"{way.__name__}, {framework}, {mode}": lambda path, way=way, framework=framework, mode=mode: way(
            path, framework, mmap_mode=mode
        )
        for way in (opened, in_slices)
        for framework in ("np", "pt")
        for mode in ("private", "read")
    },
    **{
        f"stream, {strategy}, {copy=}": lambda path, strategy=strategy, copy=copy: dict(
            pagestream.open_checkpoint(path).stream(strategy=strategy, copy=copy)
        )
        for strategy in STRATEGIES
        for copy in (False, True)
    },
    **{
        f"stream_checkpoint, {strategy}, {copy=}": lambda path, strategy=strategy, copy=copy: dict(
            stream_checkpoint(path, device="cpu", strategy=strategy, copy=copy)
        )
        for strategy in STRATEGIES
        for copy in (False, True)
    },
}


def address_of(tensor):
    return tensor.data_ptr() if isinstance(tensor, torch.Tensor) else tensor.ctypes.data


def outputs(tensors):
    """Returns the bits of a layer's result."""
    weight, bias = (torch.as_tensor(np.asarray(tensors[name])) for name in ("weight", "bias"))
    inputs = torch.arange(3 * 129, dtype=torch.float32).reshape(3, 129) / 7
    return F.linear(inputs, weight, bias).numpy().tobytes()


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("way", WAYS)
def test_tensors_lie_where_their_file_puts_them(path, place, way):
    checkpoint = pagestream.open_checkpoint(path)
    tensors = WAYS[way](path)
    assert tensors.keys() == SHAPES.keys()
    for name, tensor in tensors.items():
        assert np.array_equal(np.asarray(tensor), checkpoint[name])
        assert address_of(tensor) % CACHE_LINE_BYTES == checkpoint.info(name).offset % CACHE_LINE_BYTES
    assert checkpoint.info("weight").offset % CACHE_LINE_BYTES == place
    assert outputs(tensors) == outputs(dict(checkpoint))


@pytest.mark.parametrize(
    ("framework", "index"),
    [
        *itertools.product(["np", "pt"], [np.s_[2:], np.s_[2:9:3], np.s_[5:, 3:]]),
        ("np", np.s_[::-1]),  # torch has no negative steps
    ],
)
def test_parts_lie_where_their_first_element_lies(path, framework, index):
    offset = pagestream.open_checkpoint(path).info("weight").offset
    elements = np.arange(65 * 129).reshape(65, 129)[index]
    expected = (offset + 4 * int(elements.flat[0])) % CACHE_LINE_BYTES
    for options in ({}, {"copy": True}):
        with safe_open(path, framework, **options) as file:
            assert address_of(file.get_slice("weight")[index]) % CACHE_LINE_BYTES == expected


@pytest.mark.parametrize("mib", [1, 6, 36])
def test_copies_of_every_size_lie_there_and_are_writable(tmp_path, mib):
    path = tmp_path / "large.safetensors"
    pagestream.safetensors.numpy.save_file({"small": np.ones(2), "large": np.ones(mib << 17)}, path)
    offset = pagestream.open_checkpoint(path).info("large").offset
    copy = pagestream.safetensors.numpy.load_file(path, copy=True)["large"]
    assert copy.ctypes.data % CACHE_LINE_BYTES == offset % CACHE_LINE_BYTES
    assert copy.sum() == mib << 17
    copy[:] = 2
    assert copy.sum() == mib << 18
