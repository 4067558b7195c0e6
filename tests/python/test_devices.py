"""`safe_open` and `load_file` for a simulated device."""

import itertools
import json
import os
import re

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from pagestream.devices import copy_device, device_tensors, staged_file
from pagestream.devices.cuts import cut
from pagestream.devices.device_tensors import DeviceTensors
from pagestream.errors import MappedReadError, SafetensorError, SliceError
from pagestream.safetensors import _open, safe_open
from pagestream.safetensors.torch import load, load_file, save
from pagestream.weights.indexing import select

from support import real
from support.late_device import LateDevice, StallingDevice, interrupt_first_wait
from support.mappings import place_in_file
from support.process import PROGRAMS, output_of
from support.torch_tensors import of_every_type, same_bits
from support.weight_files import FLOATS, entry, odd_file, weight_file, write

MIB = 1 << 20


@pytest.fixture(scope="module")
def tensors():
    rng = np.random.default_rng(5)
    return of_every_type(rng) | {"large": torch.from_numpy(rng.integers(0, 1000, (3000, 700), "i4"))}


@pytest.fixture(scope="module")
def path(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("devices") / "model.safetensors"
    safetensors.torch.save_file(tensors, path)
    return path


class Noting(LateDevice):
    """Records the size of each copy."""

    def __init__(self, **options):
        super().__init__(**options)
        self.copied = []

    def copy_into(self, target, array):
        self.copied.append(array.nbytes)
        super().copy_into(target, array)


@pytest.fixture
def late(monkeypatch):
    """Lets torch's `safe_open` take the CPU for a GPU whose copies come late."""
    device = Noting(delay=0.001)
    monkeypatch.setattr(_open, "framework_on", gpu)
    monkeypatch.setattr(DeviceTensors, "_staged_for", lambda _, nbytes: device if nbytes else None)
    return device


def gpu(_name, _device, *given, **options):
    return DeviceTensors(torch.device("cpu"), *given, **options)


@pytest.mark.parametrize("piece_bytes", [100_000, 16 * MIB])
@pytest.mark.parametrize("mode", ["auto", "read"])
def test_every_type_arrives_bit_for_bit_in_pieces(path, tensors, late, monkeypatch, piece_bytes, mode):
    monkeypatch.setattr(device_tensors, "PIECE_BYTES", piece_bytes)
    with safe_open(path, "pt", "cuda", mmap_mode=mode) as file:
        for name, tensor in tensors.items():
            same_bits(file.get_tensor(name), tensor)
    assert sum(late.copied) == sum(tensor.nbytes for tensor in tensors.values())
    assert max(late.copied) == min(piece_bytes, tensors["large"].nbytes)


INDICES = [
    np.s_[5:9],
    np.s_[7],
    np.s_[:, 3:11],
    np.s_[::-2, ::3],
    np.s_[1:1],
    np.s_[..., 4],
    np.s_[[3, 1, 1]],
    np.s_[:, [0, 6, 2]],
]


@pytest.mark.parametrize("index", INDICES, ids=map(str, INDICES))
def test_parts_are_those_of_torch(path, tensors, late, monkeypatch, index):
    monkeypatch.setattr(device_tensors, "PIECE_BYTES", 100_000)
    nbytes = 0
    with safe_open(path, "pt", "cuda") as file:
        for name in ("large", "int64", "bool"):
            expected = tensors[name].numpy()[index]
            assert np.array_equal(file.get_slice(name)[index].numpy(), expected)
            nbytes += expected.nbytes
    # Index lists are applied on the CPU.
    assert sum(late.copied) == (0 if "[" in str(index) else nbytes)


def test_parts_out_of_range_are_refused(path, late):
    with safe_open(path, "pt", "cuda") as file:
        for index in (3000, [3000], np.s_[:, [0, 700]]):
            with pytest.raises(SliceError):
                file.get_slice("large")[index]
    assert late.copied == []


def test_mode_and_reason_say_that_tensors_are_copies(path, late):
    with safe_open(path, "pt", "cuda:1") as file:
        assert (file.mode, file.reason) == ("read", "the device is cpu")
    with safe_open(path, "pt", "cuda:1", copy=True) as file:
        assert file.reason == "copy=True"
    assert late.copied == []


def test_misaligned_tensors_are_not_misaligned_on_a_device(tmp_path, late):
    with safe_open(odd_file(tmp_path / "odd.safetensors"), "pt", "cuda", align="error") as file:
        same_bits(file.get_tensor("floats"), torch.from_numpy(FLOATS))
    assert late.copied == [FLOATS.nbytes]


def test_a_tensor_that_torch_cannot_make_is_named(tmp_path, late):
    header = {"a": entry("F4", [1, 3, 2], 0, 3), "b": entry("F6_E2M3", [4], 3, 6)}
    odd = write(tmp_path / "odd.safetensors", weight_file(json.loads(json.dumps(header)), 6))
    with safe_open(odd, "pt", "cuda") as file:
        assert file.get_tensor("a").shape == (1, 3, 1)
        with pytest.raises(SafetensorError, match=r"tensor 'b' at byte \d+: torch .* no type for F6_E2M3"):
            file.get_tensor("b")
    assert late.copied == [3]


def test_tensors_on_meta_are_not_read(path, tensors, monkeypatch):
    monkeypatch.setattr(DeviceTensors, "_sent", lambda *_: pytest.fail("it is read"))
    with safe_open(path, "pt", "meta") as file:
        for name, tensor in tensors.items():
            found = file.get_tensor(name)
            assert (found.is_meta, found.dtype, found.shape) == (True, tensor.dtype, tensor.shape)
        assert file.get_slice("large")[5:, ::2].shape == (2995, 350)
    assert load_file(path, "meta")["large"].is_meta


def test_bytes_read_ahead_into_memory_go_to_the_device(tmp_path, tensors, path, late):
    """On a mount without a page cache, read-ahead goes into the process's own memory."""
    slow = real.slow_fuse(path.parent, tmp_path / "mount", delay_ms=1, direct_io=True)
    with slow as mount, safe_open(mount.path / path.name, "pt", "cuda") as file:
        for name in file.offset_keys():
            same_bits(file.get_tensor(name), tensors[name])
    assert sum(late.copied) < sum(tensor.nbytes for tensor in tensors.values())
    assert mount.counts["read_bytes"] < 1.2 * path.stat().st_size


def test_a_file_that_was_cut_raises(tmp_path, tensors, late):
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt", "cuda") as file:
        last = file.offset_keys()[-1]
        os.truncate(tmp_path / "model.safetensors", 5000)
        with pytest.raises(MappedReadError):
            file.get_tensor(last)
    assert late.copied == []


def test_a_device_touches_no_page_that_storage_must_deliver(tmp_path, tensors, late, monkeypatch):
    with real.stoppable_bindfs(tmp_path) as (mount, daemon):
        safetensors.torch.save_file(tensors, tmp_path / "behind" / "model.safetensors")
        device = StallingDevice(daemon)
        monkeypatch.setattr(DeviceTensors, "_staged_for", lambda _, nbytes: device if nbytes else None)
        monkeypatch.setattr(device_tensors, "PIECE_BYTES", MIB)
        with safe_open(mount / "model.safetensors", "pt", "cuda") as file:
            for name, tensor in tensors.items():
                same_bits(file.get_tensor(name), tensor)
            assert torch.equal(file.get_slice("large")[7:900, 5:], tensors["large"][7:900, 5:])
    assert device.stalled_copies > len(tensors)


def test_a_read_that_fails_leaves_no_copy_under_way(tmp_path, late, monkeypatch):
    monkeypatch.setattr(device_tensors, "PIECE_BYTES", MIB)
    source = tmp_path / "source"
    source.mkdir()
    content = {"t": torch.zeros(8 * MIB, dtype=torch.uint8)}
    safetensors.torch.save_file(content, source / "model.safetensors")
    late.delay = 0.05
    slow = real.slow_fuse(source, tmp_path / "mount", fail_range=(6 * MIB, 7 * MIB))
    with slow as mount, safe_open(mount.path / "model.safetensors", "pt", "cuda", ahead=False) as file:
        with pytest.raises(MappedReadError):
            file.get_tensor("t")
        assert late._reading == []
    assert len(late.copied) >= 4


def test_an_interrupt_before_copies_are_waited_for_is_raised_after_them(path, late):
    interrupt_first_wait(late)
    with safe_open(path, "pt", "cuda") as file, pytest.raises(KeyboardInterrupt):
        file.get_tensor("large")
    assert late._reading == []


def test_other_devices_get_a_copy_with_its_own_memory(path, tensors, late, monkeypatch):
    monkeypatch.setattr(DeviceTensors, "_staged_for", lambda *_: None)
    with safe_open(path, "pt", "xpu") as file:
        for name, tensor in tensors.items():
            same_bits(file.get_tensor(name), tensor)
            assert place_in_file(file.get_tensor(name), path) is None
        assert torch.equal(file.get_slice("large")[5:, 3:9], tensors["large"][5:, 3:9])
    assert late.copied == []


def test_small_tensors_and_other_devices_have_no_pieces(monkeypatch):
    found, asked = LateDevice(), []
    monkeypatch.setattr(copy_device, "staged_for", lambda device: asked.append(device) or found)
    gpu, other = (DeviceTensors(torch.device(name)) for name in ("cuda:1", "xpu"))
    least = device_tensors.LEAST_BYTES
    assert gpu._staged_for(least) is found
    assert [gpu._staged_for(least - 1), gpu._staged_for(0), other._staged_for(least)] == [None] * 3
    assert asked == [torch.device("cuda", 1)]


def test_cached_pieces_are_read_by_several_threads(path, tmp_path):
    """Counts with strace the threads that a program starts."""
    trace = tmp_path / "trace"
    options = ["-f", "--seccomp-bpf", "-qq", "-e", "trace=clone,clone3,access,faccessat2", "-o", trace]
    begun = re.compile(r"^\d+ +(?:clone3?\(|<... clone3? resumed).* = \d+$", re.MULTILINE)
    program = PROGRAMS / "devices" / "reads_by_threads.py"
    wrapper = (real.need_tool("strace"), *options)
    assert output_of(program, path, 1, 4, wrapper=wrapper) == "same\nsame"
    # The program calls access(2) with these names before and after each load.
    starts = [
        len(begun.findall(trace.read_text().split(f"begins-{threads}")[1].split(f"ends-{threads}")[0]))
        for threads in (1, 4)
    ]
    assert starts == [0, 3]


def test_memory_that_cannot_be_page_locked_works_too(path, tensors, late, monkeypatch):
    def refuse(_):
        message = "no more locked memory"
        raise RuntimeError(message)

    monkeypatch.setattr(late, "allocate_pinned", refuse)
    with (
        safe_open(path, "pt", "cuda") as file,
        pytest.warns(RuntimeWarning, match=r"cannot be page-locked \(no more locked memory\)"),
    ):
        same_bits(file.get_tensor("large"), tensors["large"])
    assert late.copied == [tensors["large"].nbytes]


# --- load_file ---------------------------------------------------------------------------------------


@pytest.fixture
def staged(monkeypatch):
    """Makes `load_file` stage for the CPU as if it were a GPU. Returns the bytes of each load."""
    device, loads, transferred = copy_device.CopyDevice(torch.device("cpu")), [], staged_file.transferred

    def noted(files, wanted, *options):
        loads.append(sum(each.nbytes for each in wanted))
        return transferred(files, wanted, *options)

    monkeypatch.setattr(staged_file, "_gpu", lambda asked: None if asked == "cpu" else device)
    monkeypatch.setattr(staged_file, "transferred", noted)
    monkeypatch.setattr(staged_file, "LEAST_BYTES", 0)
    return loads


def test_a_file_for_a_gpu_goes_through_staging(path, tensors, staged):
    load_file(path)
    assert staged == []
    found = load_file(str(path), "cuda", strict=True, backend="pread")
    assert staged == [sum(tensor.nbytes for tensor in tensors.values())]
    with safe_open(path, "pt") as file:
        assert list(found) == file.offset_keys()
    for name, tensor in tensors.items():
        same_bits(found[name], tensor)
        # Each tensor has its own storage, so a model with such tensors can be saved, and each can be resized.
        assert found[name].untyped_storage().nbytes() == tensor.nbytes


def test_the_environment_bounds_staging(path, staged, monkeypatch):
    options = []
    transferred = staged_file.transferred
    monkeypatch.setattr(
        staged_file, "transferred", lambda *given: options.append(given[4:6]) or transferred(*given)
    )
    monkeypatch.setenv("PAGESTREAM_MEMORY_BYTES", str(4 * MIB))
    monkeypatch.setenv("PAGESTREAM_THREADS", "3")
    load_file(path, "cuda")
    assert options == [(4 * MIB, 3)]
    monkeypatch.setenv("PAGESTREAM_THREADS", "many")
    with pytest.raises(ValueError, match="PAGESTREAM_THREADS"):
        load_file(path, "cuda")


@pytest.mark.parametrize("options", [{"ahead": 1 << 20}, {"ahead": False}, {"raw": True}])
def test_options_that_rule_out_staging_load_without_it(path, staged, options):
    found = load_file(path, "meta", **options)
    assert all(tensor.is_meta for tensor in found.values())
    assert staged == []


def test_disabled_read_ahead_is_off_for_devices_too(path, staged, monkeypatch):
    monkeypatch.setenv("PAGESTREAM_AHEAD", "off")
    assert all(tensor.is_meta for tensor in load_file(path, "meta").values())
    assert staged == []


def test_small_files_are_not_staged(path, staged, monkeypatch):
    monkeypatch.setattr(staged_file, "LEAST_BYTES", 1 << 30)
    assert all(tensor.is_meta for tensor in load_file(path, "meta").values())
    assert staged == []


def test_errors_are_those_of_safe_open(tmp_path, staged):
    broken = write(tmp_path / "broken.safetensors", b"\x05\0\0\0\0\0\0\0hello")
    for device in ("cpu", "cuda"):
        with pytest.raises(FileNotFoundError) as raised:
            load_file(tmp_path / "none.safetensors", device)
        assert raised.value.filename == str(tmp_path / "none.safetensors")
        with pytest.raises(SafetensorError, match=r"broken\.safetensors"):
            load_file(broken, device)
        with pytest.raises(SafetensorError, match="backend must be"):
            load_file(broken, device, backend="fast")
        with pytest.raises(TypeError, match="copy must be True or False"):
            load_file(broken, device, copy="yes")
    assert staged == []


@pytest.mark.parametrize(("is_built", "kind"), [(True, RuntimeError), (False, AssertionError)])
def test_the_error_for_a_gpu_that_torch_does_not_see_has_torchs_type(path, monkeypatch, is_built, kind):
    """Upstream raises torch's own error, whose type depends on the build of torch."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: is_built)
    count = torch.cuda.device_count()
    seen = f"^device 'cuda:{count}' is not available: torch .* sees {count or 'no'} cuda device"
    device = f"cuda:{count}"
    with safe_open(path, "pt", device) as file:  # opening succeeds, as with upstream
        large = file.get_slice("large")
        for call in (
            lambda: load_file(path, device),
            lambda: file.get_tensor("large"),
            lambda: file.get_tensor(file.keys()[0]),
            lambda: large[:1],
            lambda: large[[1, 2]],
        ):
            with pytest.raises(kind, match=seen) as caught:
                call()
            assert type(caught.value) is kind


def test_fake_tensors_need_no_gpu(path):
    from torch._subclasses import FakeTensorMode

    device = f"cuda:{torch.cuda.device_count()}"
    with FakeTensorMode(), safe_open(path, "pt", device) as file:
        assert str(file.get_tensor("large").device) == device


def test_a_device_that_torch_does_not_know_is_refused(path):
    with pytest.raises(SafetensorError, match="device 'gpu' is invalid"):
        load_file(path, "gpu")


def test_integrated_gpus_are_not_staged_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(copy_device, "shares_memory", lambda _: True)
    assert staged_file._gpu("cuda") is None
    assert staged_file._gpu("cuda:1") is None
    assert staged_file._gpu("no device") is None
    assert staged_file._gpu(None) is None


def test_bytes_in_memory_are_loaded_to_the_cpu(tensors):
    found = load(save({"a": tensors["int64"]}))
    same_bits(found["a"], tensors["int64"])


# --- parts -------------------------------------------------------------------------------------------


def test_parts_of_a_selection_are_its_elements_in_order():
    shape = (5, 6, 7)
    values = np.arange(np.prod(shape))
    for index in (np.s_[:], np.s_[::-2, 1:4], np.s_[:, :, ::3], np.s_[3], np.s_[2, 4, 6], np.s_[1:1]):
        whole = select(shape, index)
        expected = values.reshape(shape)[index].reshape(-1)
        for most in (1, 2, 5, 7, 13, 42, 1000):
            parts = list(cut(whole, most))
            assert all(0 < part.size <= most for part in parts)
            found = [values[place] for part in parts for place in places(part)]
            assert np.array_equal(found, expected)


def places(selection):
    for index in itertools.product(*map(range, selection.shape)):
        yield selection.first + sum(i * stride for i, stride in zip(index, selection.strides, strict=True))
