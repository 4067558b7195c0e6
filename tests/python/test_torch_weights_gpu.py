"""`stream_checkpoint`, `load_state_dict` and `load_into` on a real GPU."""

import gc
import os
import warnings

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from pagestream.errors import MappedReadError, SliceError
from pagestream.safetensors import safe_open
from pagestream.safetensors.torch import load, load_file, save
from pagestream.torch import load_into, load_state_dict, stream_checkpoint

from support.torch_tensors import of_every_type, same_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MIB = 1 << 20


@pytest.fixture(scope="module")
def tensors():
    return of_every_type(np.random.default_rng(2)) | {"large": torch.randn(3000, 2000)}


@pytest.fixture(scope="module")
def path(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("gpu") / "model.safetensors"
    safetensors.torch.save_file(tensors, path)
    return path


def same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].is_cuda
        same_bits(found[name], tensor)


@pytest.mark.parametrize("memory_bytes", [1, 16 * MIB, None])
def test_every_tensor_arrives_bit_for_bit(path, tensors, memory_bytes):
    same(dict(stream_checkpoint(path, device="cuda", memory_bytes=memory_bytes)), tensors)
    same(load_state_dict(path, "cuda:0"), tensors)


def test_parts_and_casts(path, tensors):
    plan = {"large": np.s_[::3, 100:900], "int64": None, "float16": np.s_[5]}
    found = load_state_dict(path, "cuda", plan=plan, dtype=torch.bfloat16)
    expected = {"large": tensors["large"][::3, 100:900].bfloat16(), "int64": tensors["int64"]}
    # The device chooses the bits of a NaN itself.
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
        warnings.simplefilter("error")  # any failure to page-lock memory would warn
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


# --- upstream's names --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda", 0])
def test_safe_open_and_load_file_give_what_upstream_gives(path, tensors, device):
    same(load_file(path, device), tensors)
    with safe_open(path, "pt", device) as file:
        same({name: file.get_tensor(name) for name in file.keys()}, tensors)  # noqa: SIM118 - upstream's way
        assert (file.mode, file.reason) == ("read", f"the device is {torch.device(device)}")
        for index in (np.s_[7:2000, ::3], np.s_[[5, 5, 0]], np.s_[:, 4]):
            found = file.get_slice("large")[index]
            same({"large": found}, {"large": tensors["large"][index]})
    with safetensors.safe_open(path, "pt", device=device) as file:
        assert file.get_tensor("large").device == found.device


def test_pieces_are_right_while_the_device_lags_behind(tmp_path):
    """Page-locked memory is reused before earlier copies from it have begun."""
    path = tmp_path / "model.safetensors"
    content = {f"t{n}": torch.arange(n, n + 12 * MIB, dtype=torch.int32) for n in range(4)}
    safetensors.torch.save_file(content, path)
    busy = torch.randn(4096, 4096, device="cuda")
    with safe_open(path, "pt", "cuda") as file:
        for _ in range(30):
            busy = busy @ busy / 4096
        found = {name: file.get_tensor(name) for name in content}
    same(found, content)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), safe_open(path, "pt", "cuda") as file:
        total = sum(file.get_tensor(name).sum() for name in content)
        late = file.get_tensor("t3")
    # The tensor made on the side stream is complete.
    assert torch.equal(late.cpu(), content["t3"])
    side.synchronize()
    assert int(total) == sum(int(tensor.sum()) for tensor in content.values())


def test_large_files_are_staged_and_small_ones_are_not(tmp_path, monkeypatch):
    from pagestream.devices import staged_file

    loads, transferred = [], staged_file.transferred
    monkeypatch.setattr(staged_file, "transferred", lambda *given: loads.append(given) or transferred(*given))
    for name, mebibytes in (("small", 8), ("large", 80)):
        content = {f"t{n}": torch.randn(MIB // 4) for n in range(mebibytes)}
        safetensors.torch.save_file(content, tmp_path / name)
        same(load_file(tmp_path / name, "cuda"), content)
    assert len(loads) == 1


def test_out_of_device_memory_is_torchs_own_error(tmp_path):
    path = tmp_path / "sparse.safetensors"
    nbytes = 1 << 40
    header = b'{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (nbytes, nbytes)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + nbytes)
    with safe_open(path, "pt", "cuda") as file, pytest.raises(torch.OutOfMemoryError):
        file.get_tensor("a")
    with pytest.raises(torch.OutOfMemoryError):
        load_file(path, "cuda")
    torch.cuda.synchronize()


@pytest.mark.parametrize("way", ["safe_open", "stream"])
def test_a_file_that_was_cut_raises_and_the_device_goes_on(tmp_path, way):
    path = tmp_path / "model.safetensors"
    content = {f"t{n:02}": torch.randn(2 * MIB) for n in range(40)}
    safetensors.torch.save_file(content, path)
    if way == "safe_open":
        with safe_open(path, "pt", "cuda") as file:
            os.truncate(path, 100 * MIB)
            with pytest.raises(MappedReadError):
                file.get_tensor("t39")
    else:
        stream = stream_checkpoint(path, device="cuda", memory_bytes=16 * MIB)
        next(stream)
        os.truncate(path, 100 * MIB)
        with pytest.raises(MappedReadError):
            list(stream)
    assert float(torch.ones(3, device="cuda").sum()) == 3


def test_a_wrong_index_does_not_end_the_use_of_the_device(path):
    with safe_open(path, "pt", "cuda") as file:
        for index in ([3000], np.s_[:, [2000]], np.s_[[[5]], 0:9999999, 7, 8]):
            with pytest.raises(SliceError):
                file.get_slice("large")[index]
    assert float(torch.ones(3, device="cuda").sum()) == 3


def test_bytes_in_memory_stay_on_the_cpu(tensors):
    assert load(save({"a": tensors["large"]}))["a"].device.type == "cpu"


# --- ranks -------------------------------------------------------------------------------------------


def test_a_group_of_nccl_with_one_rank(path, tensors, tmp_path):
    import torch.distributed as dist

    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        found = stream_checkpoint(path, device="cuda", process_group=dist.group.WORLD)
        same(dict(found), tensors)
        module = nn.TransformerEncoderLayer(64, 4)
        held = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        safetensors.torch.save_file(held, tmp_path / "layer.safetensors")
        other = nn.TransformerEncoderLayer(64, 4).to("cuda")
        load_into(other, tmp_path / "layer.safetensors", process_group=dist.group.WORLD)
        same(other.state_dict(), held)
    finally:
        dist.destroy_process_group()
