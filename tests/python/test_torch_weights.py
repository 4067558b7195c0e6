"""`load_state_dict` and `stream_checkpoint` on the CPU: types, shards, parts, casts, mounts, failures."""

import errno
import gc
import json
import os

import numpy as np
import pytest
import safetensors.torch
import torch

from pagestream import MappedFile, open_checkpoint
from pagestream.devices import copy_device
from pagestream.devices.planned import planned
from pagestream.errors import FileChangedError, FormatError, MappedReadError, SafetensorError
from pagestream.torch import load_into, load_state_dict, stream_checkpoint, weights
from pagestream.torch._exchange import byte_box
from pagestream.weights.dtypes import NAMES

from support import real
from support.checkpoints import shard_name, write_index
from support.process import PROGRAMS, output_of
from support.weight_files import ELEMENT_TYPES, entry, odd_file, weight_file, write

MIB = 1 << 20
STRATEGIES = ["auto", "mapped", "ahead", "pread", "direct"]
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def same(found, expected):
    """Compares tensors bit for bit, including types that torch cannot compare."""
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(found[name]) == bits(tensor), name


def bits(tensor):
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def evict(path):
    gc.collect()
    with MappedFile(path) as file:
        file.evict()
        assert file.residency().fraction == 0.0


def test_a_write_to_a_read_only_array_ends_no_process(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"vector": torch.arange(3000.0)}, path)
    program = PROGRAMS / "torch_weights/writes_ignore_the_flag.py"
    assert output_of(program, path, with_torch=True, has_brief_end=True) == "11 kinds of arrays were written"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_copies_do_not_change_with_their_file(tmp_path, strategy):
    path = tmp_path / "model.safetensors"
    expected = {"matrix": torch.arange(6e5).view(600, 1000), "bias": torch.arange(7).bfloat16()}
    safetensors.torch.save_file(expected, path)
    plan = {"matrix": np.s_[:, 3:], "bias": None}
    stream = stream_checkpoint(path, device="cpu", plan=plan, strategy=strategy, copy=True)
    assert len(stream) == 2
    found = dict(stream)
    with pytest.raises(TypeError, match="copy must be True or False, not None"):
        stream_checkpoint(path, device="cpu", copy=None)
    path.write_bytes(bytes(100))
    same(found, {"matrix": expected["matrix"][:, 3:], "bias": expected["bias"]})


@pytest.fixture(scope="module")
def every_type(tmp_path_factory):
    """Returns a file with one tensor of each type. Small types have all of their bit patterns."""
    rng = np.random.default_rng(5)
    header, data = {}, b""
    for code, _, kind in sorted(ELEMENT_TYPES, key=lambda each: -np.dtype(each[2]).itemsize):
        content = rng.integers(0, 2 if code == "BOOL" else 256, 256 * np.dtype(kind).itemsize, "u1").tobytes()
        header[code] = entry(code, [16, 16], len(data), len(data) + len(content))
        data += content
    header["F4"] = entry("F4", [3, 8], len(data), len(data) + 12)
    data += rng.integers(0, 256, 12, "u1").tobytes()
    return write(tmp_path_factory.mktemp("types") / "types.safetensors", weight_file(header, data))


@pytest.fixture(scope="module")
def tensors():
    torch.manual_seed(3)
    return {
        "embed": torch.randn(700, 301),
        "layers.0.w": torch.randn(1500, 512, dtype=torch.bfloat16),
        "layers.0.b": torch.randn(17).half(),
        "layers.10.w": torch.randn(64, 3, 5, dtype=torch.float64),
        "layers.2.w": torch.randint(-99, 99, (1000, 33)),
        "mask": torch.rand(1001) > 0.5,
        "nothing": torch.empty(0, 4),
        "scale": torch.tensor(2.5),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tensors):
    """Writes the tensors to three shards, with an index."""
    folder = tmp_path_factory.mktemp("sharded")
    names, weight_map = list(tensors), {}
    for number in range(3):
        part = {name: tensors[name] for name in names[number::3]}
        safetensors.torch.save_file(part, folder / shard_name(number + 1, 3))
        weight_map |= dict.fromkeys(part, shard_name(number + 1, 3))
    write_index(folder, weight_map)
    return folder


def loaded(folder):
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(file, "pt") as opened:
            found |= {name: opened.get_tensor(name) for name in opened.offset_keys()}
    return found


# --- tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_bytes", [1, None])
def test_every_type_passes_through_staging(every_type, monkeypatch, memory_bytes):
    expected = load_state_dict(every_type)
    monkeypatch.setattr(copy_device, "staged_for", copy_device.CopyDevice)
    same(dict(stream_checkpoint(every_type, device="cpu", memory_bytes=memory_bytes)), expected)
    plan = {"F4": np.s_[1:, 1:3]} | {code: np.s_[3:9, ::-5] for code, *_ in ELEMENT_TYPES}
    staged = dict(stream_checkpoint(every_type, device="cpu", plan=plan))
    monkeypatch.setattr(copy_device, "staged_for", lambda _: None)
    same(staged, dict(stream_checkpoint(every_type, device="cpu", plan=plan, strategy="pread")))


@pytest.mark.parametrize("mmap_mode", ["auto", "shared", "private", "read"])
def test_every_type_is_that_of_safetensors_bit_for_bit(every_type, mmap_mode):
    with safetensors.safe_open(every_type, "pt") as opened:
        expected = {name: opened.get_tensor(name) for name in opened.offset_keys()}
    assert len(expected) == len(ELEMENT_TYPES) + 1 == sum(hasattr(torch, name) for name in NAMES.values()) + 1
    same(load_state_dict(every_type, mmap_mode=mmap_mode), expected)
    for strategy in ["auto", "pread"]:
        same(dict(stream_checkpoint(every_type, device="cpu", strategy=strategy)), expected)


@every_strategy
def test_shards_come_as_one_in_the_order_of_the_files(folder, strategy):
    expected = loaded(folder)
    same(dict(stream_checkpoint(folder, device="cpu", strategy=strategy)), expected)
    files = sorted(folder.glob("*.safetensors"))
    for path in (folder, folder / "model.safetensors.index.json", files):
        same(load_state_dict(path), expected)
    same(load_state_dict(str(files[0])), {name: expected[name] for name in load_state_dict(files[0])})


@every_strategy
def test_plans_parts_and_orders(folder, tensors, strategy):
    plan = {
        "layers.10.w": np.s_[5:60:7, :, 1],
        "scale": None,
        "embed": np.s_[:, 100:103],
        "layers.2.w": (None, 3),
    }
    expected = {name: tensors[name][... if index is None else index] for name, index in plan.items()}
    found = dict(stream_checkpoint(folder, device="cpu", plan=plan, order="plan", strategy=strategy))
    same(found, expected)
    in_layers = stream_checkpoint(folder, device="cpu", order="layer", strategy=strategy)
    names = [name for name, _ in in_layers if name.startswith("layers")]
    assert sorted(names[:2]) == ["layers.0.b", "layers.0.w"]
    assert names[2:] == ["layers.2.w", "layers.10.w"]
    same(load_state_dict(folder, plan=["mask"]), {"mask": tensors["mask"]})


@every_strategy
def test_parts_of_pairs_count_pairs(every_type, strategy):
    whole = load_state_dict(every_type)["F4"]
    assert whole.shape == (3, 4)
    plan = {"F4": np.s_[1:, 1:3]}
    [(_, part)] = stream_checkpoint(every_type, device="cpu", plan=plan, strategy=strategy)
    assert (part.dtype, part.shape) == (torch.float4_e2m1fn_x2, (2, 2))
    assert bits(part) == bits(whole.view(torch.uint8)[1:, 1:3])


@every_strategy
def test_a_type_is_cast_and_others_stay(every_type, strategy):
    expected = {
        name: tensor.to(torch.bfloat16) if name in ("F16", "BF16", "F32", "F64") else tensor
        for name, tensor in load_state_dict(every_type).items()
    }
    same(dict(stream_checkpoint(every_type, device="cpu", dtype=torch.bfloat16, strategy=strategy)), expected)
    same(load_state_dict(every_type, dtype=torch.bfloat16), expected)
    same(load_state_dict(every_type, dtype="bfloat16"), expected)


@every_strategy
def test_the_default_device_does_not_matter(folder, strategy):
    with torch.device("meta"):
        found = dict(stream_checkpoint(folder, device="cpu", strategy=strategy))
    same(found, loaded(folder))


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, "float16", "half", "torch.float16", np.float16, np.dtype("f2"), "f2"],
    ids=repr,
)
def test_a_type_to_cast_to_is_torchs_or_numpys(folder, dtype):
    found = load_state_dict(folder, dtype=dtype)
    assert {tensor.dtype for tensor in found.values() if tensor.is_floating_point()} == {torch.float16}


def test_the_name_float_is_torchs(folder):
    found = load_state_dict(folder, dtype="float")
    assert {tensor.dtype for tensor in found.values() if tensor.is_floating_point()} == {torch.float32}


def test_a_type_is_not_cast_to_what_loses_it(every_type):
    with pytest.raises(ValueError, match=r"dtype must be a floating-point type, not torch.int8"):
        load_state_dict(every_type, dtype=torch.int8)
    with pytest.raises(
        TypeError, match=r"dtype must be a type of torch or NumPy, or the name of one, .* not 'half-size'"
    ):
        stream_checkpoint(every_type, device="cpu", dtype="half-size")


def test_a_type_that_torch_lacks_is_refused_before_anything_is_read(tmp_path):
    header = {"a": entry("F32", [2], 0, 8), "b": entry("F6_E2M3", [4], 8, 11)}
    path = write(tmp_path / "six.safetensors", weight_file(header, 11))
    with pytest.raises(
        SafetensorError, match=r"tensor 'b' at byte \d+: torch .* has no type for F6_E2M3 elements; safe_open"
    ):
        stream_checkpoint(path, device="cpu")
    assert list(load_state_dict(path, plan=["a"])) == ["a"]
    header = {"odd": entry("F4", [2, 3], 0, 3)}
    path = write(tmp_path / "odd.safetensors", weight_file(header, 3))
    with pytest.raises(FormatError, match=r"tensor 'odd' .* F4 elements in pairs"):
        stream_checkpoint(path, device="cpu")


@every_strategy
def test_misaligned_tensors_are_aligned_copies(tmp_path, strategy):
    path = odd_file(tmp_path / "odd.safetensors")
    found = dict(stream_checkpoint(path, device="cpu", strategy=strategy))["floats"]
    assert found.tolist() == [0, 1, 2, 3, 4]
    assert found.data_ptr() % 4 == 0


# --- memory ----------------------------------------------------------------------------------------


def anonymous_bytes():
    with open("/proc/self/smaps_rollup") as rollup:
        return next(int(line.split()[1]) for line in rollup if line.startswith("Anonymous:")) * 1024


def test_cached_tensors_are_not_copied_and_can_be_written(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(32 * MIB, dtype=torch.uint8)}, path)
    evict(path)
    path.read_bytes()
    before = anonymous_bytes()
    found = load_state_dict(path)
    assert found["a"].sum() == 0
    assert anonymous_bytes() - before < 4 * MIB
    found["a"][5] = 7
    assert load_state_dict(path)["a"][5] == 0
    assert found["a"][5] == 7


def test_uncached_tensors_are_read_into_their_own_memory(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.full((8 * MIB,), 3, dtype=torch.uint8)}, path)
    evict(path)
    found = load_state_dict(path)
    os.truncate(path, 1000)
    assert found["a"].sum() == 3 * 8 * MIB


def test_a_cast_makes_no_second_copy_of_the_whole(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({f"t{n:02}": torch.ones(2 * MIB) for n in range(24)}, path)
    program = PROGRAMS / "torch_weights" / "cast.py"
    facts = json.loads(output_of(program, path, PAGESTREAM_MEMORY_BYTES=str(16 * MIB)))
    # The peak: 96 MiB of bfloat16, the budget, one tensor of 8 MiB before its cast, and 8 MiB for torch.
    assert facts["kept_bytes"] == 96 * MIB
    assert facts["peak_bytes"] <= 96 * MIB + 16 * MIB + 8 * MIB + 8 * MIB, facts


# --- mounts and failures ---------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [False, True])
def test_many_requests_are_in_flight_on_a_slow_mount(tmp_path, direct):
    source = tmp_path / "source"
    source.mkdir()
    tensors = {f"t{number:02}": torch.full((MIB,), number, dtype=torch.uint8) for number in range(64)}
    safetensors.torch.save_file(tensors, source / "model.safetensors")
    # Cached FUSE allows 12 requests of the kernel at a time (max_background).
    gather = 24 if direct else 10
    with real.slow_fuse(source, tmp_path / "slow", direct_io=direct, gather=gather) as slow:
        same(load_state_dict(slow.path / "model.safetensors"), tensors)
        gc.collect()
    assert slow.counts["most_in_flight"] >= gather
    assert 64 * MIB <= slow.counts["read_bytes"] <= 1.02 * 64 * MIB


def test_storage_that_fails_and_files_that_change_are_errors(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    path = source / "m.safetensors"
    safetensors.torch.save_file({f"t{n:02}": torch.ones(MIB, dtype=torch.uint8) for n in range(32)}, path)
    failing = real.slow_fuse(source, tmp_path / "slow", direct_io=True, fail_range=(20 * MIB, 21 * MIB))
    with failing as slow:
        with pytest.raises(MappedReadError) as caught:
            load_state_dict(slow.path / "m.safetensors")
        assert caught.value.errno == errno.EIO
        del caught
        gc.collect()
    stream = stream_checkpoint(path, device="cpu", strategy="pread", memory_bytes=MIB)
    assert next(stream)[0] == "t00"
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"changed!")
    with pytest.raises(FileChangedError):
        list(stream)


def test_wrong_arguments_are_refused_at_once(folder):
    with pytest.raises(ValueError, match=r'device must be "cpu", "cuda" or "mps", not \'meta\''):
        stream_checkpoint(folder, device="meta")
    with pytest.raises(ValueError, match="device 'gpu' is invalid"):
        load_state_dict(folder, "gpu")
    beyond = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ValueError, match=f"device '{beyond}' is not available"):
        load_state_dict(folder, beyond)
    with pytest.raises(ValueError, match='strategy must be "auto", "mapped", "ahead", "pread" or "direct"'):
        stream_checkpoint(folder, device="cpu", strategy="fast")
    with pytest.raises(ValueError, match='order must be "file", "plan" or "layer"'):
        stream_checkpoint(folder, device="cpu", order="name")
    with pytest.raises(ValueError, match="memory_bytes must be at least 1"):
        stream_checkpoint(folder, device="cpu", memory_bytes=0)
    with pytest.raises(KeyError, match="absent"):
        stream_checkpoint(folder, device="cpu", plan=["absent"])
    with pytest.raises(IndexError, match="out of bounds"):
        load_state_dict(folder, plan={"scale": None, "embed": 700})
    with pytest.raises(FileNotFoundError):
        load_state_dict(folder / "none.safetensors")


def test_an_open_checkpoint_is_taken_with_its_options_and_stays_open(tmp_path, tensors):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    safetensors.torch.save_file({"scale": tensors["scale"]}, elsewhere / "blob")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / shard_name(1, 1)).symlink_to(elsewhere / "blob")
    write_index(linked, dict.fromkeys(["scale", "lost"], shard_name(1, 1)))
    module = torch.nn.Module()
    module.register_buffer("scale", torch.zeros(()))
    with open_checkpoint(linked, cache_root=elsewhere, strict=False, mmap_mode="read") as checkpoint:
        assert load_state_dict(checkpoint) == {"scale": tensors["scale"]}
        assert dict(stream_checkpoint(checkpoint, device="cpu")) == {"scale": tensors["scale"]}
        load_into(module, checkpoint)
        assert module.scale.item() == tensors["scale"].item() == checkpoint["scale"].item()
    for load in (
        load_state_dict,
        lambda closed: list(stream_checkpoint(closed, device="cpu")),
        lambda closed: load_into(module, closed),
    ):
        with pytest.raises(ValueError, match="closed"):
            load(checkpoint)


def test_an_open_checkpoint_has_its_mode(folder):
    with open_checkpoint(folder) as checkpoint:
        with pytest.raises(ValueError, match="mmap_mode='read' has no effect without a path"):
            load_state_dict(checkpoint, mmap_mode="read")
        with pytest.raises(TypeError, match="path must be a path or a list of paths, not <Checkpoint"):
            open_checkpoint(checkpoint)


def test_progress_counts_the_bytes_of_the_plan(folder):
    seen = []
    plan = {"embed": np.s_[:2], "scale": None}
    list(stream_checkpoint(folder, device="cpu", plan=plan, progress=lambda *counts: seen.append(counts)))
    assert seen[-1] == (2 * 301 * 4 + 4, 2 * 301 * 4 + 4)


# --- devices that work in the host's memory ----------------------------------------------------------


def test_a_device_in_the_hosts_memory_gets_each_tensor_from_where_it_was_read(folder, monkeypatch):
    """With `meta` as the device, tensors have the types and shapes of the files, and nothing is staged."""
    monkeypatch.setattr(weights, "usable", lambda _: torch.device("meta"))
    monkeypatch.setattr(copy_device, "shares_memory", lambda _: True)
    # The device never gets a view of a file, whether or not the file is cached.
    monkeypatch.setattr(weights, "_on_file", lambda *_: pytest.fail("a view of a file"))
    expected = loaded(folder)
    found = dict(stream_checkpoint(folder, device="mps"))
    assert list(found) == list(expected)
    assert all(tensor.is_meta for tensor in found.values())
    facts = {name: (tensor.shape, tensor.dtype) for name, tensor in expected.items()}
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in found.items()} == facts
    for strategy in ("mapped", "ahead"):
        with pytest.raises(ValueError, match=f'strategy="{strategy}" is for the CPU'):
            stream_checkpoint(folder, device="mps", strategy=strategy)
    with pytest.raises(ValueError, match="strategy must be"):
        stream_checkpoint(folder, device="mps", strategy="fast")


def test_integrated_gpus_work_in_the_hosts_memory(monkeypatch):
    class Properties:
        is_integrated = 1

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    assert copy_device.shares_memory(torch.device("cuda", 0))
    assert copy_device.shares_memory(torch.device("mps"))
    Properties.is_integrated = 0
    assert not copy_device.shares_memory(torch.device("cuda", 0))


def test_the_environment_bounds_the_threads(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.mkdir()
    safetensors.torch.save_file({"t": torch.zeros(8 << 20, dtype=torch.uint8)}, source / "model.safetensors")
    monkeypatch.setenv("PAGESTREAM_THREADS", "1")
    with real.slow_fuse(source, tmp_path / "slow", direct_io=True, delay_ms=2) as slow:
        for _ in stream_checkpoint(slow.path, device="cpu"):
            pass
        with open_checkpoint(slow.path) as opened:
            assert opened.warm().wait()
    assert slow.counts["most_in_flight"] == 1
    monkeypatch.setenv("PAGESTREAM_THREADS", "x")
    with pytest.raises(ValueError, match="PAGESTREAM_THREADS"):
        stream_checkpoint(source, device="cpu")


def test_ranks_agree_on_the_bytes_of_elements_that_share_them(every_type):
    """The first request covers the whole tensor, and the second one a part of it."""
    weights = open_checkpoint(every_type)
    [whole], [part] = (planned(weights, {"F4": index}, "plan") for index in (None, np.s_[1:, 1:3]))
    assert byte_box(whole) == ((3, 4), (range(3), range(4)))
    assert byte_box(part) == ((3, 4), (range(1, 3), range(1, 3)))


@pytest.mark.parametrize("strategy", ["mapped", "pread"])
def test_writes_to_tensors_of_an_open_checkpoint_show_in_no_other_tensor(tmp_path, strategy):
    """Tensors may be copies or views of the file. In both cases, a second load has the file's bytes."""
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.ones(5000), "b": torch.ones(3, 4)}, path)
    with open_checkpoint(path) as weights:
        array = weights["a"]
        for _ in range(3):
            tensors = dict(stream_checkpoint(weights, device="cpu", strategy=strategy))
            assert all(bool((tensor == 1).all()) for tensor in tensors.values())
            for tensor in tensors.values():
                tensor.zero_()
            state = load_state_dict(weights)
            assert all(bool((tensor == 1).all()) for tensor in state.values())
            state["a"].zero_()
        assert (array == 1).all()
        assert all((each == 1).all() for _, each in weights.stream())
        assert (weights["b"] == 1).all()
    tensors["a"].add_(2)  # tensors outlive the checkpoint
    assert bool((tensors["a"] == 2).all())
