"""Loads while the program has replaced torch's constructors, or while it creates fake tensors."""

import numpy as np
import pytest
import safetensors.torch
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pagestream.devices import constructors, copy_device, staged_file
from pagestream.devices.copy_device import CopyDevice
from pagestream.devices.device_tensors import DeviceTensors
from pagestream.errors import MappedReadError, SafetensorError, SliceError
from pagestream.safetensors import _open, safe_open
from pagestream.safetensors.torch import load, load_file
from pagestream.torch import TokenDataset, TokenLoader, load_into, load_state_dict, stream_checkpoint

from support import real
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
    """Sends loads to a device: one whose copies come late, or the CPU as if it were a GPU."""
    found = LateDevice(delay=0) if request.param == "late" else CopyDevice(torch.device("cpu"))
    monkeypatch.setattr(copy_device, "staged_for", lambda _: found)
    monkeypatch.setattr(DeviceTensors, "_staged_for", lambda _, nbytes: found if nbytes else None)
    monkeypatch.setattr(
        _open, "framework_on", lambda _, __, *given, **options: DeviceTensors(found.device, *given)
    )
    monkeypatch.setattr(CopyDevice, "allocate_pinned", lambda _, nbytes: np.empty(nbytes, np.uint8))
    if request.param == "direct":
        # `load_file` copies on the device. The late device lacks the bytes by then, as its host does not
        # wait.
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
    assert output_of(program, path, with_torch=True, has_brief_end=True) == f"{line}\n{line}"


def test_deepspeed_itself(path, tmp_path):
    program = PROGRAMS / "devices_constructors/with_deepspeed.py"
    told = output_of(program, path, tmp_path, with_torch=True, has_brief_end=True)
    assert "loaded 14 tensors in each context of deepspeed" in told


@pytest.mark.parametrize(
    ("function", "name", "kind"),
    [("empty", "floats", torch.float32), ("view", "bfloat16", torch.bfloat16)],
)
def test_a_mode_that_changes_tensors_is_named(path, tmp_path, function, name, kind):
    """A tensor whose type or device differs from the header's is refused."""
    if name == "floats":  # misaligned, and therefore copied to an empty tensor
        path = odd_file(tmp_path / "odd.safetensors")
    told = f"'{name}' .*torch returned torch.float64 on cpu, not {kind} on cpu: a TorchFunctionMode"
    with safe_open(path, "pt") as file:
        with Changes(function), pytest.raises(SafetensorError, match=told):
            file.get_tensor(name)
        assert file.get_tensor(name).dtype == kind


def test_more_dimensions_than_numpy_has(tmp_path):
    shape = (1,) * 70 + (3,)
    path = tmp_path / "deep.safetensors"
    safetensors.torch.save_file(
        {"deep": torch.arange(3.0).view(shape), "half": torch.arange(3).bfloat16().view(shape)}, path
    )
    with safe_open(path, "pt") as file:
        same_bits(file.get_tensor("deep"), torch.arange(3.0).view(shape))
        same_bits(file.get_tensor("half"), torch.arange(3).bfloat16().view(shape))


def test_constructors_are_those_of_torch(monkeypatch):
    """Programs see the replaced constructors, but loads do not use them."""
    for name in ("as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, None)
    with deepspeed_zero_init():
        kinds = {getattr(torch, name)(*given).dtype for name, given in zip(WRAPPED, GIVEN, strict=True)}
        kinds.add(torch.Tensor(2).dtype)
        assert kinds == {torch.bfloat16}
        made = [
            constructors.empty((2,), torch.float32, constructors.CPU),
            constructors.over_memory(bytearray(8), constructors.stored(torch.float32), (2,), 2, 0),
            constructors.from_numpy(np.zeros(2, "f4")),
            constructors.as_tensor([1.0, 2.0]),
        ]
    assert {(tensor.dtype, tensor.shape) for tensor in made} == {(torch.float32, (2,))}


GIVEN = [([1.0],), (2,), (2,), (2,), ((2,), 1.0), (1.0,), (2,), (2,)]


# --- fake tensors ------------------------------------------------------------------------------------


@pytest.fixture
def unreadable(tensors, tmp_path):
    """Yields a file on a mount where each read of a tensor's bytes fails."""
    (tmp_path / "source").mkdir()
    source = tmp_path / "source/model.safetensors"
    safetensors.torch.save_file(tensors, source)
    with source.open("rb") as file:
        data_start = 8 + int.from_bytes(file.read(8), "little")
    # Opening a file in "read" mode reads its last byte.
    failing = (data_start, source.stat().st_size - 1)
    slow = real.slow_fuse(source.parent, tmp_path / "mount", direct_io=True, fail_range=failing)
    with slow as mount, safe_open(mount.path / source.name, "np", mmap_mode="read") as file:
        with pytest.raises(MappedReadError):
            file.get_tensor("int8")
        yield mount.path / source.name


def described(tensors, device):
    return {name: (FakeTensor, tensor.dtype, tensor.shape, device) for name, tensor in tensors.items()}


def facts(tensors):
    return {name: (type(each), each.dtype, each.shape, each.device.type) for name, each in tensors.items()}


@pytest.mark.parametrize("device", ["cpu", "cuda", "meta"])
@pytest.mark.parametrize("options", [{}, {"mmap_mode": "read"}, {"copy": True}], ids=str)
def test_safe_open_gives_fake_tensors_and_reads_nothing(unreadable, tensors, options, device):
    expected = in_order_of(unreadable, tensors)
    with FakeTensorMode(), safe_open(unreadable, "pt", device, **options) as file:
        found = {name: file.get_tensor(name) for name in expected}
        parts = [file.get_slice("matrix")[index] for index in INDICES]
        loaded = load_file(unreadable, device, **options)
    assert facts(found) == facts(loaded) == described(expected, device)
    shapes = [tensors["matrix"].numpy()[index].shape for index in INDICES]
    assert facts(dict(enumerate(parts))) == {
        number: (FakeTensor, torch.float32, shape, device) for number, shape in enumerate(shapes)
    }


@pytest.mark.parametrize("strategy", ["auto", "pread", "direct"])
def test_streams_give_fake_tensors_and_read_nothing(unreadable, tensors, strategy, device):
    expected = in_order_of(unreadable, tensors)
    plan = {"matrix": np.s_[:, ::2], "vector": None}
    with FakeTensorMode():
        for where in ("cpu", "cuda"):
            found = dict(stream_checkpoint(unreadable, device=where, strategy=strategy))
            assert facts(found) == described(expected, where)
        parts = dict(stream_checkpoint(unreadable, device="cuda", plan=plan, dtype=torch.float16))
        assert facts(load_state_dict(unreadable)) == described(expected, "cpu")
    assert facts(parts) == {
        "vector": (FakeTensor, torch.float16, (700,), "cuda"),
        "matrix": (FakeTensor, torch.float16, (300, 350), "cuda"),
    }


def load_within(path):
    """A module whose forward pass loads a tensor."""

    class Module(torch.nn.Module):
        def forward(self, x):
            return x + load_file(path)["vector"]

    return Module()


@pytest.mark.parametrize("options", [{}, {"mmap_mode": "read"}, {"copy": True}], ids=str)
def test_a_load_inside_a_gradient_is_a_constant(path, tensors, options):
    def weighted(x):
        return (x * load_file(path, **options)["vector"]).sum()

    vector = tensors["vector"]
    assert torch.equal(torch.func.grad(weighted)(torch.ones_like(vector)), vector)
    product, gradient_of = torch.func.vjp(weighted, torch.ones_like(vector))
    assert product == vector.sum()
    assert torch.equal(gradient_of(torch.ones(()).to(product))[0], vector)


def test_a_load_inside_a_traced_program_is_refused(path, tensors):
    """The traced program would compute with an empty tensor."""
    example = torch.zeros_like(tensors["vector"])
    with pytest.raises(RuntimeError, match="load them before"):
        torch.export.export(load_within(path), (example,), strict=False)
    with pytest.raises(RuntimeError, match="load them before"):
        make_fx(load_within(path), tracing_mode="fake")(example)


@pytest.mark.parametrize("assign", [False, True])
def test_a_fake_module_is_filled_with_fake_tensors(unreadable, assign):
    with FakeTensorMode():
        module = torch.nn.Module()
        module.matrix = torch.nn.Parameter(torch.empty(300, 700, dtype=torch.float64))
        module.tied = module.matrix
        module.matrix.note = "kept"
        module.register_buffer("vector", torch.empty(700))
        report = load_into(module, unreadable, plan=["matrix", "vector"], assign=assign)
    assert report.tied == {"tied": "matrix"}
    assert module.matrix is module.tied
    assert (module.matrix.note, module.matrix.requires_grad) == ("kept", True)
    kinds = (torch.float32, torch.float64) if assign else (torch.float64, torch.float32)
    assert facts(dict(module.named_parameters()) | dict(module.named_buffers())) == {
        "matrix": (FakeTensor, kinds[0], (300, 700), "cpu"),
        "vector": (FakeTensor, kinds[1], (700,), "cpu"),
    }


def test_bytes_and_streams_that_were_read_already_give_fake_tensors(path, tensors):
    expected = in_order_of(path, tensors)
    stream = stream_checkpoint(path, device="cpu", strategy="pread")
    with FakeTensorMode():
        assert facts(load(path.read_bytes())) == facts(dict(stream)) == described(expected, "cpu")


def test_a_stream_continues_with_bytes_after_the_mode_ends(path, tensors):
    expected = in_order_of(path, tensors)
    with FakeTensorMode():
        stream = stream_checkpoint(path, device="cpu")
        first, tensor = next(stream)
    assert facts({first: tensor}) == described({first: expected.pop(first)}, "cpu")
    same(dict(stream), expected)


def test_fake_masks_are_refused(path):
    """The shape of such a part depends on the values of the elements."""
    with FakeTensorMode(), safe_open(path, "pt") as file, pytest.raises(SliceError, match="nonzero"):
        file.get_slice("vector")[[True, False] * 350]
