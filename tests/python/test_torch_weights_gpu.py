"""`stream_checkpoint`, `load_state_dict` and `load_into` on a real GPU."""

import gc
import warnings

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from pagestream.torch import load_into, load_state_dict, stream_checkpoint
from pagestream.weights.dtypes import NAMES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MIB = 1 << 20


@pytest.fixture(scope="module")
def tensors():
    rng = np.random.default_rng(2)
    found = {}
    for name in NAMES.values():
        kind = getattr(torch, name, None)
        if kind is not None:
            content = rng.integers(0, 2 if name == "bool" else 256, 600 * kind.itemsize, "u1")
            found[name] = torch.from_numpy(content).view(kind).view(20, 30)
    return found | {"large": torch.randn(3000, 2000), "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5)}


@pytest.fixture(scope="module")
def path(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("gpu") / "model.safetensors"
    safetensors.torch.save_file(tensors, path)
    return path


def same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        there = found[name]
        assert there.is_cuda
        assert (there.dtype, there.shape) == (tensor.dtype, tensor.shape)
        one, other = (each.cpu().contiguous().reshape(-1).view(torch.uint8) for each in (there, tensor))
        assert torch.equal(one, other), name


@pytest.mark.parametrize("memory_bytes", [1, 16 * MIB, None])
def test_every_tensor_arrives_bit_for_bit(path, tensors, memory_bytes):
    same(dict(stream_checkpoint(path, device="cuda", memory_bytes=memory_bytes)), tensors)
    same(load_state_dict(path, "cuda:0"), tensors)


def test_parts_and_casts(path, tensors):
    plan = {"large": np.s_[::3, 100:900], "int64": None, "float16": np.s_[5]}
    found = load_state_dict(path, "cuda", plan=plan, dtype=torch.bfloat16)
    expected = {"large": tensors["large"][::3, 100:900].bfloat16(), "int64": tensors["int64"]}
    # The bits of what is no number are the device's own.
    half = found.pop("float16").cpu()
    assert torch.equal(half.nan_to_num(7), tensors["float16"][5].bfloat16().nan_to_num(7))
    same(found, expected)


def test_tensors_are_right_while_the_device_lags_behind_and_are_dropped_early(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(
        {f"t{n:02}": torch.full((MIB,), n, dtype=torch.int32) for n in range(60)}, path
    )
    busy, sums = torch.randn(2048, 2048, device="cuda"), []
    for _, tensor in stream_checkpoint(path, device="cuda", memory_bytes=16 * MIB):
        for _ in range(5):
            busy = busy @ busy / 2048
        sums.append(tensor.sum(dtype=torch.int64))
        del tensor
    assert [int(found) for found in sums] == [n * MIB for n in range(60)]


def test_streams_that_are_left_unpin_their_memory(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as where memory cannot be page-locked
        for _ in range(30):
            stream = stream_checkpoint(path, device="cuda")
            next(stream)
            stream.close()
            del stream
            gc.collect()


def test_modules_are_filled_where_they_are_and_from_meta(tmp_path):
    path = tmp_path / "model.safetensors"
    held = {name: tensor.clone() for name, tensor in nn.TransformerEncoderLayer(64, 4).state_dict().items()}
    safetensors.torch.save_file(held, path)
    module = nn.TransformerEncoderLayer(64, 4).to("cuda", torch.bfloat16)
    module.norm1.to("cpu")
    load_into(module, path)
    for name, tensor in module.state_dict().items():
        assert tensor.is_cuda != name.startswith("norm1")
        assert torch.equal(tensor.cpu(), held[name].bfloat16())
    with torch.device("meta"):
        module = nn.TransformerEncoderLayer(64, 4)
    with torch.device("cuda"):
        load_into(module, path)
    same(module.state_dict(), held)
