"""Loads while the program has replaced torch's constructors, and by way of them."""

import numpy as np
import pytest
import safetensors.torch
import torch

from pagestream.devices import constructors, copy_device, staged_file
from pagestream.devices.copy_device import CopyDevice
from pagestream.devices.device_tensors import DeviceTensors
from pagestream.errors import SafetensorError
from pagestream.safetensors import _open, safe_open
from pagestream.safetensors.torch import load, load_file
from pagestream.torch import TokenDataset, TokenLoader, load_into, load_state_dict, stream_checkpoint

from support.late_device import LateDevice, StagedOnCpu
from support.process import PROGRAMS, output_of
from support.torch_constructors import PLACES, WRAPPED, Changes, deepspeed_zero_init
from support.torch_tensors import of_every_type, same_bits
from support.weight_files import FLOATS, odd_file

places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


@pytest.fixture(scope="module")
def tensors():
    rng = np.random.default_rng(5)
    return of_every_type(rng) | {
        "matrix": torch.from_numpy(rng.integers(0, 1000, (300, 700)).astype("f4")),
        "vector": torch.from_numpy(rng.integers(0, 1000, 700).astype("f8")),
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("constructors") / "model.safetensors"
    safetensors.torch.save_file(tensors, path)
    return path


@pytest.fixture(params=["late", "direct"])
def device(request, monkeypatch):
    """Loads take the way to a device: one whose copies come late, or the CPU as if it were a GPU."""
    found = LateDevice(delay=0) if request.param == "late" else CopyDevice(torch.device("cpu"))
    monkeypatch.setattr(copy_device, "staged_for", lambda _: found)
    monkeypatch.setattr(DeviceTensors, "_staged_for", lambda _, nbytes: found if nbytes else None)
    monkeypatch.setattr(
        _open, "framework_on", lambda _, __, *given, **options: DeviceTensors(found.device, *given)
    )
    monkeypatch.setattr(CopyDevice, "allocate_pinned", lambda _, nbytes: np.empty(nbytes, np.uint8))
    if request.param == "direct":
        # `load_file` copies on the device: too early for the simulated one, whose host does not wait.
        monkeypatch.setattr(staged_file, "_gpu", lambda _: found)
        monkeypatch.setattr(staged_file, "LEAST_BYTES", 0)
    return found


def same(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        same_bits(found[name], tensor)


def in_order_of(path, tensors):
    with safe_open(path, "np") as file:
        return {name: tensors[name] for name in file.offset_keys()}


@places
@pytest.mark.parametrize("options", [{}, {"mmap_mode": "read"}, {"copy": True}], ids=str)
def test_safe_open_and_load_file(path, tensors, place, options):
    expected = in_order_of(path, tensors)
    with safe_open(path, "pt", **options) as file:
        with place():
            found = {name: file.get_tensor(name) for name in expected}
            loaded = load_file(path, **options)
        same(found, expected)
        same(loaded, expected)


@places
def test_bytes_and_misaligned_tensors(path, tensors, place, tmp_path):
    odd = odd_file(tmp_path / "odd.safetensors")
    with place():
        found = load(path.read_bytes())
        floats = load_file(odd)["floats"]
    same(found, in_order_of(path, tensors))
    same_bits(floats, torch.from_numpy(FLOATS))


INDICES = [np.s_[7:9], np.s_[:, 3:11], np.s_[::-2, ::3], np.s_[1:1], np.s_[:, [0, 6, 2]], np.s_[[3, -1]]]


@places
@pytest.mark.parametrize("mode", ["auto", "read"])
def test_slices(path, tensors, place, mode):
    with place(), safe_open(path, "pt", mmap_mode=mode) as file:
        found = [file.get_slice("matrix")[index] for index in INDICES]
    for index, tensor in zip(INDICES, found, strict=True):
        assert (tensor.dtype, tensor.device.type) == (torch.float32, "cpu")
        assert np.array_equal(tensor.numpy(), tensors["matrix"].numpy()[index])


@places
@pytest.mark.parametrize("strategy", ["mapped", "ahead", "pread", "direct"])
def test_streams(path, tensors, place, strategy):
    expected = in_order_of(path, tensors)
    plan = {"matrix": np.s_[:, ::2], "vector": None}
    with place():
        found = dict(stream_checkpoint(path, device="cpu", strategy=strategy))
        parts = dict(stream_checkpoint(path, device="cpu", strategy=strategy, plan=plan, dtype=torch.float16))
    same(found, expected)
    same(
        parts,
        {name: expected[name][plan[name]].half() if plan[name] else expected[name].half() for name in parts},
    )


@places
def test_state_dicts_and_modules(path, tensors, place):
    names = ("matrix", "vector")
    modules = []
    for _ in range(2):
        modules.append(torch.nn.Module())
        for name in names:
            modules[-1].register_buffer(name, torch.zeros_like(tensors[name]))
    with place():
        found = load_state_dict(path)
        read = load_state_dict(path, mmap_mode="read")
        for assign, module in enumerate(modules):
            load_into(module, path, plan=names, assign=bool(assign))
    same(found, in_order_of(path, tensors))
    same(read, in_order_of(path, tensors))
    for module in modules:
        same({name: getattr(module, name) for name in names}, {name: tensors[name] for name in names})


@places
def test_loads_for_a_device(tmp_path, tensors, place, device):
    path = tmp_path / "model.safetensors"
    # All sizes are multiples of 16 bytes. The device would move tensors of other sizes.
    expected = {name: tensors[name] for name in ("vector", "matrix")} | {"half": tensors["matrix"].half()}
    safetensors.torch.save_file(expected, path)
    expected = in_order_of(path, expected)
    with place():
        streamed = dict(stream_checkpoint(path, device="cpu"))
        loaded = load_file(path, "cuda")
        state = load_state_dict(path)
        with safe_open(path, "pt", "cuda") as file:
            opened = {name: file.get_tensor(name) for name in expected}
            part = file.get_slice("matrix")[:, ::3]
    device.synchronize()
    for found in (streamed, loaded, state, opened):
        same(found, expected)
    same_bits(part, expected["matrix"][:, ::3])


@places
def test_batches_of_tokens(token_file, place):
    options = {"sequence_length": 8, "batch_size": 2, "seed": 1, "order": "sequential"}
    expected = torch.arange(8)
    with place():
        x, y = TokenDataset(token_file, 8)[0]
        with TokenLoader(token_file, **options) as loader, StagedOnCpu(token_file, **options) as staged:
            batches = [next(iter(loader)), next(iter(staged))]
    same_bits(x, expected)
    same_bits(y, expected + 1)
    for batch in batches:
        same_bits(batch.x[0], expected)


def test_a_library_that_is_imported_meanwhile(path, tensors):
    program = PROGRAMS / "devices_constructors/imported_inside.py"
    line = f"torch.float32 cpu {tensors['matrix'].sum().item()}"
    assert output_of(program, path, with_torch=True) == f"{line}\n{line}"


@pytest.mark.parametrize(("function", "mode"), [("empty", "read"), ("view", "auto")])
def test_a_mode_that_changes_tensors_is_named(path, function, mode):
    """A tensor with another type or device than in the header is refused."""
    told = r"'matrix' .*torch returned torch.bfloat16 on cpu, not torch.float32 on cpu: a TorchFunctionMode"
    with safe_open(path, "pt", mmap_mode=mode) as file:
        with Changes(function), pytest.raises(SafetensorError, match=told):
            file.get_tensor("matrix")
        assert file.get_tensor("matrix").dtype == torch.float32


def test_constructors_are_those_of_torch(monkeypatch):
    """The replacements are seen by programs, and not by loads."""
    for name in ("as_tensor", "from_numpy", "frombuffer"):
        monkeypatch.setattr(torch, name, None)
    with deepspeed_zero_init():
        kinds = {getattr(torch, name)(*given).dtype for name, given in zip(WRAPPED, GIVEN, strict=True)}
        kinds.add(torch.Tensor(2).dtype)
        assert kinds == {torch.bfloat16}
        made = [
            constructors.empty((2,), torch.float32, constructors.CPU),
            constructors.frombuffer(bytearray(8), dtype=torch.float32),
            constructors.from_numpy(np.zeros(2, "f4")),
            constructors.as_tensor([1.0, 2.0]),
        ]
    assert {(tensor.dtype, tensor.shape) for tensor in made} == {(torch.float32, (2,))}


GIVEN = [([1.0],), (2,), (2,), (2,), ((2,), 1.0), (1.0,), (2,), (2,)]
