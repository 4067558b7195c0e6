"""`load_into`: modules filled tensor by tensor, in place or by assignment, tied, renamed, on `meta`."""

import json
import os

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from pagestream.devices import copy_device
from pagestream.devices.copy_device import CopyDevice
from pagestream.errors import MappedReadError
from pagestream.torch import load_into, load_state_dict, modules, weights

from support.late_device import LateDevice
from support.process import PROGRAMS, output_of

MIB = 1 << 20


class Transformer(nn.Module):
    """A small language model with tied embeddings, and with persistent and non-persistent buffers."""

    def __init__(self, vocabulary=500, width=48, layers=3):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 96, batch_first=True, dropout=0.0)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("positions", torch.arange(64).float(), persistent=False)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, tokens):
        found = self.embed(tokens) + self.positions[: tokens.shape[1], None]
        found = self.norm(self.blocks(found).transpose(1, 2)).transpose(1, 2)
        return self.head(found)


def saved(module, path, **changes):
    """Saves the module's tensors, tied ones once, and returns them."""
    held = {name: tensor for name, tensor in module.state_dict().items() if name != "head.weight"} | changes
    safetensors.torch.save_file(held, path)
    return held


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(4)
    module = Transformer()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    module.steps += 77
    return module.eval()


@pytest.fixture(scope="module")
def path(tmp_path_factory, trained):
    path = tmp_path_factory.mktemp("modules") / "model.safetensors"
    saved(trained, path)
    return path


def unchanged(module, before):
    return all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def copied(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def gives_what(module, trained):
    tokens = torch.arange(40).view(2, 20)
    return torch.equal(module.eval()(tokens), trained(tokens))


# --- in place --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mmap_mode", ["auto", "read"])
def test_a_module_is_filled_in_place(path, trained, monkeypatch, mmap_mode):
    monkeypatch.setenv("PAGESTREAM_MMAP_MODE", mmap_mode)
    torch.manual_seed(9)
    module = Transformer()
    before = {name: tensor.data_ptr() for name, tensor in module.state_dict().items()}
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    report = load_into(module, path)
    assert (report.missing, report.unexpected) == ([], [])
    assert report.tied == {"head.weight": "embed.weight"}
    assert report.nbytes == sum(tensor.nbytes for tensor in trained.state_dict().values()) - 500 * 48 * 4
    assert {name: tensor.data_ptr() for name, tensor in module.state_dict().items()} == before
    assert all(one is other for one, other in zip(module.parameters(), parameters, strict=True))
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in parameters)
    assert gives_what(module, trained)
    assert module.steps == 77
    # The module can be trained.
    module(torch.arange(8).view(2, 4)).sum().backward()
    optimizer.step()
    assert not gives_what(module, trained)


def test_the_modules_types_win_in_place(tmp_path):
    module = nn.Linear(3, 2)
    saved(module, tmp_path / "m.safetensors", weight=torch.full((2, 3), 0.3, dtype=torch.float64))
    narrow = nn.Linear(3, 2, dtype=torch.bfloat16)
    load_into(narrow, tmp_path / "m.safetensors")
    assert narrow.weight.dtype == narrow.bias.dtype == torch.bfloat16
    assert torch.equal(narrow.weight, torch.full((2, 3), 0.3).bfloat16())
    assert torch.equal(narrow.bias, module.bias.bfloat16())


def test_tensors_that_are_not_contiguous_are_filled(tmp_path):
    safetensors.torch.save_file({"a": torch.arange(12.0).view(3, 4)}, tmp_path / "m.safetensors")
    module = nn.Module()
    module.a = nn.Parameter(torch.zeros(4, 3).t())
    load_into(module, tmp_path / "m.safetensors")
    assert torch.equal(module.a, torch.arange(12.0).view(3, 4))
    assert module.a.stride() == (1, 3)


def test_buffers_that_are_not_persistent_are_left_alone(path):
    module = Transformer()
    module.positions += 5
    load_into(module, path)
    assert torch.equal(module.positions, torch.arange(64).float() + 5)
    assert "positions" not in load_into(module, path, strict=False).missing


def test_names_that_share_a_tensor_by_a_view_are_one(tmp_path):
    module = nn.Module()
    module.a = nn.Parameter(torch.zeros(4))
    module.b = nn.Parameter(module.a.detach())
    assert module.a is not module.b
    safetensors.torch.save_file({"b": torch.arange(4.0)}, tmp_path / "m.safetensors")
    report = load_into(module, tmp_path / "m.safetensors")
    assert report.tied == {"a": "b"}
    assert torch.equal(module.a, torch.arange(4.0))


def test_the_modules_first_name_of_a_shared_tensor_is_read(tmp_path, trained):
    path = tmp_path / "m.safetensors"
    weight = trained.embed.weight.detach()
    saved(trained, path, **{"head.weight": weight + 1})
    module = Transformer()
    report = load_into(module, path)
    assert report.unexpected == []
    assert torch.equal(module.head.weight, weight)
    assert report.nbytes == sum(tensor.nbytes for tensor in trained.state_dict().values()) - weight.nbytes


# --- names and shapes -------------------------------------------------------------------------------


def test_all_problems_come_in_one_error_before_anything_changes(tmp_path, trained):
    path = tmp_path / "m.safetensors"
    held = saved(trained, path, extra=torch.zeros(3), steps=torch.zeros(2))
    del held["norm.bias"]
    held["norm.weight"] = torch.zeros(49)
    safetensors.torch.save_file(held, path)
    module = Transformer()
    before = copied(module)
    with pytest.raises(RuntimeError) as caught:
        load_into(module, path)
    assert unchanged(module, before)
    lines = str(caught.value).split("\n\t")
    assert lines[:3] == [
        "Error(s) in loading state_dict for Transformer:",
        'Missing key(s) in state_dict: "norm.bias". ',
        'Unexpected key(s) in state_dict: "extra". ',
    ]
    assert lines[-1] == f"The checkpoint is {str(path)!r}."
    assert sorted(lines[3:-1]) == [
        (
            "size mismatch for norm.weight: copying a param with shape torch.Size([49]) from checkpoint, "
            "the shape in current model is torch.Size([48])."
        ),
        (
            "size mismatch for steps: copying a param with shape torch.Size([2]) from checkpoint, "
            "the shape in current model is torch.Size([])."
        ),
    ]
    # torch uses the same wording.
    with pytest.raises(RuntimeError) as theirs:
        Transformer().load_state_dict(load_state_dict(path))
    torchs = {line.split(". ")[0] for line in str(theirs.value).split("\n\t")}
    assert {line.split(". ")[0] for line in lines[:-1] if "key(s)" not in line} <= torchs
    with pytest.raises(RuntimeError, match="size mismatch for steps"):
        load_into(module, path, strict=False)
    assert unchanged(module, before)


def test_without_strict_names_are_reported(tmp_path, trained):
    path = tmp_path / "m.safetensors"
    held = saved(trained, path, extra=torch.zeros(3))
    del held["embed.weight"]
    safetensors.torch.save_file(held, path)
    module = Transformer()
    before = copied(module)
    report = load_into(module, path, strict=False)
    assert report.missing == ["embed.weight", "head.weight"]
    assert report.unexpected == ["extra"]
    assert torch.equal(module.embed.weight, before["embed.weight"])
    assert torch.equal(module.norm.bias, trained.norm.bias)


def test_names_are_changed_by_a_mapping_or_a_function(tmp_path, trained):
    path = tmp_path / "m.safetensors"
    held = {f"model.{name}": tensor for name, tensor in trained.state_dict().items() if name != "head.weight"}
    safetensors.torch.save_file(held | {"rope.freqs": torch.zeros(2)}, path)

    def rename(name):
        return None if name.startswith("rope") else name.removeprefix("model.")

    module = Transformer()
    assert load_into(module, path, rename=rename).unexpected == []
    assert gives_what(module, trained)
    mapping = {f"model.{name}": name for name in module.state_dict()} | {"rope.freqs": None}
    module = Transformer()
    load_into(module, path, rename=mapping)
    assert gives_what(module, trained)
    del mapping["rope.freqs"]
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "rope.freqs"'):
        load_into(module, path, rename=mapping)
    with pytest.raises(
        ValueError, match=r"rename gives 'model\S+' of \S+ and 'model\S+' of \S+ one name: 'a'"
    ):
        load_into(module, path, rename=lambda _: "a")
    with pytest.raises(TypeError, match="rename must be a mapping, a function or None, not 5"):
        load_into(module, path, rename=5)
    with pytest.raises(TypeError, match=r"rename must give a str or None for 'model\.\S+', not 7"):
        load_into(module, path, rename=lambda _: 7)


def test_plans_select_by_the_checkpoints_names_and_take_parts(path, trained):
    module = nn.Module()
    module.embed = nn.Embedding(250, 48)
    plan = {"embed.weight": np.s_[250:]}
    assert load_into(module, path, plan=plan).nbytes == 250 * 48 * 4
    assert torch.equal(module.embed.weight, trained.embed.weight[250:])
    with pytest.raises(KeyError, match="absent"):
        load_into(module, path, plan=["absent"])


# --- assigning and meta ------------------------------------------------------------------------------


def test_assigning_gives_the_tensors_of_the_file(tmp_path):
    module = nn.Linear(3, 2, bias=False)
    module.weight.requires_grad_(requires_grad=False)
    module.weight.split_along = 1
    kept = torch.full((2, 3), 0.25, dtype=torch.float64)
    safetensors.torch.save_file({"weight": kept}, tmp_path / "m.safetensors")
    load_into(module, tmp_path / "m.safetensors", assign=True)
    assert isinstance(module.weight, nn.Parameter)
    assert not module.weight.requires_grad
    assert module.weight.split_along == 1
    assert module.weight.dtype == torch.float64
    assert torch.equal(module.weight, kept)


def test_a_type_without_a_gradient_cannot_be_assigned_where_there_is_one(tmp_path):
    safetensors.torch.save_file({"weight": torch.ones(2, 3, dtype=torch.int8)}, tmp_path / "m.safetensors")
    module = nn.Linear(3, 2, bias=False)
    with pytest.raises(RuntimeError, match=r"type mismatch for weight: torch.int8 in the checkpoint"):
        load_into(module, tmp_path / "m.safetensors", assign=True)
    module.weight.requires_grad_(requires_grad=False)
    load_into(module, tmp_path / "m.safetensors", assign=True)
    assert module.weight.dtype == torch.int8


@pytest.mark.parametrize("assign", [False, True])
def test_a_module_on_meta_gets_memory_and_stays_tied(path, trained, assign):
    with torch.device("meta"):
        module = Transformer()
    report = load_into(module, path, assign=assign)
    assert report.on_meta == ["positions"]
    module.positions = torch.arange(64).float()
    assert load_into(module, path, assign=assign).on_meta == []
    assert not any(tensor.is_meta for tensor in module.state_dict().values())
    assert module.head.weight is module.embed.weight
    assert module.steps == 77
    assert gives_what(module, trained)
    module(torch.arange(8).view(2, 4)).sum().backward()
    assert module.embed.weight.grad is not None


def test_a_module_on_meta_gets_its_own_memory_unless_assigned(tmp_path):
    path = tmp_path / "m.safetensors"
    held = {"weight": torch.ones(512, 512)}
    for assign in (False, True):
        safetensors.torch.save_file(held, path)
        module = nn.Linear(512, 512, bias=False, device="meta")
        load_into(module, path, assign=assign)
        with path.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(bytes(4))
        # An assigned tensor of a cached file is a view of the file, as with `load_state_dict`.
        assert int(module.weight[-1, -1]) == (0 if assign else 1)


def test_a_module_on_meta_keeps_its_types_unless_assigned(path):
    with torch.device("meta"):
        module, other = Transformer().bfloat16(), Transformer().bfloat16()
    module.embed.weight.requires_grad_(requires_grad=False)
    load_into(module, path)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}
    assert not module.embed.weight.requires_grad
    load_into(other, path, assign=True)
    assert {parameter.dtype for parameter in other.parameters()} == {torch.float32}


def test_missing_tensors_stay_on_meta(path):
    with torch.device("meta"):
        module = Transformer()
    report = load_into(module, path, plan=["steps"], strict=False)
    assert module.embed.weight.is_meta
    assert module.steps == 77
    assert "embed.weight" in report.missing
    # A tied tensor appears under each of its names.
    assert set(report.on_meta) == {*report.missing, "positions", "head.weight"}


def test_meta_as_the_default_device_is_no_place_for_content(path):
    with torch.device("meta"):
        module = Transformer()
        with pytest.raises(
            ValueError, match=r"cannot load 'norm\.num_batches_tracked': .* is 'meta'; call load_into within"
        ):
            load_into(module, path)
    load_into(module, path)
    assert not module.embed.weight.is_meta


def test_a_device_of_another_kind_is_named_with_the_parameter(path, monkeypatch):
    module = Transformer()
    monkeypatch.setattr(modules._Target, "device", lambda _: torch.device("xpu"))
    with pytest.raises(
        ValueError, match=r"cannot load 'norm\.num_batches_tracked', which is on 'xpu': device must be"
    ):
        load_into(module, path)


def test_lazy_modules_are_refused(path):
    with pytest.raises(ValueError, match="weight is not initialised: its shape is not known"):
        load_into(nn.LazyLinear(4), path)


# --- devices -----------------------------------------------------------------------------------------


def test_parameters_on_a_device_are_filled_by_way_of_staging(path, trained, monkeypatch):
    staged = []
    monkeypatch.setattr(
        copy_device, "staged_for", lambda device: staged.append(device) or CopyDevice(torch.device("cpu"))
    )
    module = Transformer()
    load_into(module, path)
    assert staged == [torch.device("cpu")]
    assert gives_what(module, trained)


def test_each_tensor_goes_where_its_parameter_is(path, trained, monkeypatch):
    """One of the two devices holds no content. Tensors on the CPU are filled once."""
    module, asked = Transformer(), []

    def tensors_on(device, *arguments, **options):
        asked.append((device, sorted(each.info.name for each in arguments[1])))
        return weights.tensors_on(torch.device("cpu"), *arguments, **options)

    monkeypatch.setattr("pagestream.torch.modules.tensors_on", tensors_on)
    monkeypatch.setattr("pagestream.torch.modules.usable", lambda device: device)
    there = {id(module.embed.weight), id(module.norm.bias)}
    monkeypatch.setattr(
        "pagestream.torch.modules._Target.device",
        lambda target: torch.device("cuda", 1) if id(target.tensor) in there else target.tensor.device,
    )
    load_into(module, path)
    assert dict(asked)[torch.device("cuda", 1)] == ["embed.weight", "norm.bias"]
    assert sum(len(names) for _, names in asked) == len(trained.state_dict()) - 1
    assert gives_what(module, trained)


def test_a_failure_leaves_no_page_locked_memory(path, monkeypatch):
    late, calls = LateDevice(delay=0), []
    monkeypatch.setattr(copy_device, "staged_for", lambda _: late)
    module = Transformer()

    def interrupt(done, _total):
        calls.append(done)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_into(module, path, progress=interrupt)
    assert (late.registered, late._reading) == ({}, [])


def test_progress_ends_at_all_bytes(path):
    seen = []
    report = load_into(Transformer(), path, progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (report.nbytes, report.nbytes)


# --- files and memory -------------------------------------------------------------------------------


def test_a_file_that_is_cut_meanwhile_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    module = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(8))
    safetensors.torch.save_file(module.state_dict(), path)
    monkeypatch.setenv("PAGESTREAM_MMAP_MODE", "read")
    monkeypatch.setenv("PAGESTREAM_MEMORY_BYTES", str(MIB))

    def cut(_done, _total):
        os.truncate(path, 3 * MIB)

    with pytest.raises(MappedReadError, match="truncated"):
        load_into(module, path, progress=cut)


@pytest.mark.parametrize("way", ["in place", "assign", "assign to meta", "meta"])
def test_there_is_no_second_copy_of_the_model(tmp_path, way):
    path = tmp_path / "m.safetensors"
    program = PROGRAMS / "torch_weights" / "into.py"
    budget, largest, total = 16 * MIB, 8 * MIB, 24 * 8 * MIB
    variables = {"PAGESTREAM_MEMORY_BYTES": str(budget), "PAGESTREAM_MMAP_MODE": "read"}
    # glibc returns freed memory of this size to the kernel and does not keep it in its heap.
    variables["MALLOC_MMAP_THRESHOLD_"] = str(MIB)
    facts = json.loads(output_of(program, path, way, **variables))
    kept = total if way.endswith("meta") else 0
    # The limit covers the module's tensors, the budget, one tensor, and torch's own memory.
    assert facts["extra_bytes"] <= kept + budget + largest + 8 * MIB, facts
    assert facts["is_right"]


def test_parts_of_tensors_on_ranks_are_refused_before_anything_is_read(tmp_path):
    """A whole tensor in place of a rank's part would silently break the model."""
    from torch.distributed.tensor import DTensor, Shard

    held = {"weight": torch.ones(4, 3), "bias": torch.ones(4)}
    safetensors.torch.save_file(held, tmp_path / "m.safetensors")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        layer = nn.Linear(3, 4)
        part = DTensor.from_local(torch.zeros(4, 3), mesh, [Shard(0)])
        layer.weight = nn.Parameter(part)
        with pytest.raises(RuntimeError, match="weight is a DTensor, and this rank has only a part of it"):
            load_into(layer, tmp_path / "m.safetensors")
        assert (layer.weight.to_local() == 0).all()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("module", [{}, None, nn.Linear])
def test_other_objects_than_modules_are_refused_before_a_file_is_opened(module):
    with pytest.raises(TypeError, match=r"module must be a torch\.nn\.Module, not "):
        load_into(module, "nowhere.safetensors")
