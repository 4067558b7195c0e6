"""`pagestream.safetensors`: upstream's names, and tensors that are writable without a copy."""

from __future__ import annotations

import functools
import hashlib
import itertools
import mmap
import os
import pickle
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes  # noqa: F401 - upstream's NumPy reader supports BF16 only after this import
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import pagestream.safetensors.numpy
import pagestream.safetensors.torch
from pagestream.errors import FileChangedError, MappedReadError, PagestreamError
from pagestream.safetensors import SafetensorError, _safe_open_handle, safe_open

from support.mappings import mappings_of, place_in_file
from support.process import PROGRAMS, output_of
from support.weight_files import ELEMENT_TYPES, FLOATS, entry, odd_file, weight_file, write

GIB = 1 << 30
MODES = ["auto", "shared", "private", "read"]
LOADERS = {"np": pagestream.safetensors.numpy.load_file, "pt": pagestream.safetensors.torch.load_file}
UPSTREAM_LOADERS = {"np": safetensors.numpy.load_file, "pt": safetensors.torch.load_file}

every_framework = pytest.mark.parametrize("framework", ["np", "pt"])
OPTIONS = [*({"mmap_mode": mode} for mode in MODES), {"copy": True}]
every_mode = pytest.mark.parametrize("mode", MODES)
every_option = pytest.mark.parametrize("options", OPTIONS, ids=str)

WEIGHTS = {
    "matrix": np.arange(4096, dtype="<f4").reshape(1024, 4),  # four pages
    "vector": np.arange(5, dtype="<i8"),
    "scalar": np.array(1.5, "<f8"),
    "empty": np.zeros((2, 0, 3), "<u2"),
}


@pytest.fixture
def path(tmp_path):
    """A file of `WEIGHTS`."""
    safetensors.numpy.save_file(WEIGHTS, tmp_path / "weights.safetensors", {"format": "pt"})
    return str(tmp_path / "weights.safetensors")


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_numpy(tensor):
    return tensor.numpy() if isinstance(tensor, torch.Tensor) else tensor


def torch_bytes(tensor):
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


# These calls ask whether the program is under a `FakeTensorMode`.
ASKING = ["makes_fakes", "_len_torch_dispatch_stack"]


@pytest.mark.parametrize(
    ("framework", "dtype", "calls"),
    [
        ("np", torch.float32, ["claim", "setdefault", "array"]),
        ("pt", torch.float32, [*ASKING, "array", "over_array", "from_numpy"]),
        ("pt", torch.bfloat16, [*ASKING, "array", "over_array", "from_numpy", "view"]),
    ],
)
def test_a_plain_tensor_takes_one_native_call_and_few_python_calls(tmp_path, framework, dtype, calls):
    """Each further call would add several percent to the time of a small tensor."""
    path, found = tmp_path / "plain.safetensors", []
    safetensors.torch.save_file({"plain": torch.ones(4, 4, dtype=dtype)}, path)

    def note(frame, event, function):
        if event in ("call", "c_call"):
            found.append(function.__name__ if event == "c_call" else frame.f_code.co_name)

    with safe_open(path, framework) as file:
        file.get_tensor("plain")
        sys.setprofile(note)
        try:
            file.get_tensor("plain")
        finally:
            sys.setprofile(None)
    assert found == ["get_tensor", *calls, "setprofile"]


@every_framework
def test_keys_are_sorted_and_offset_keys_in_the_order_of_the_data(path, framework):
    with safe_open(path, framework) as ours, safetensors.safe_open(path, framework) as theirs:
        assert ours.keys() == theirs.keys() == sorted(WEIGHTS)
        assert ours.offset_keys() == theirs.offset_keys() != ours.keys()
        assert ours.metadata() == theirs.metadata() == {"format": "pt"}


def test_metadata_is_none_where_there_is_none(tmp_path):
    path = write(tmp_path / "none", weight_file("{}"))
    assert safe_open(path, "np").metadata() is safetensors.safe_open(path, "np").metadata() is None


@pytest.mark.parametrize("mode", [*MODES, "copy"])
@pytest.mark.parametrize(("code", "torch_name", "dtype"), ELEMENT_TYPES, ids=str)
def test_tensors_of_every_type_are_those_that_torch_wrote(tmp_path, code, torch_name, dtype, mode):
    wide = torch.complex128 if code == "C64" else torch.float64
    written = torch.tensor([[0.0, 1.0, 2.0], [0.5, 4.0, 8.0]], dtype=wide).to(getattr(torch, torch_name))
    safetensors.torch.save_file({"pad": torch.zeros(1, dtype=torch.uint8), "t": written}, tmp_path / "t")
    options = {"copy": True} if mode == "copy" else {"mmap_mode": mode}
    tensor = safe_open(tmp_path / "t", "pt", **options).get_tensor("t")
    array = safe_open(tmp_path / "t", "np", **options).get_tensor("t")
    assert (tensor.dtype, tensor.shape) == (written.dtype, (2, 3))
    assert (array.dtype, array.shape) == (np.dtype(dtype), (2, 3))
    assert torch_bytes(tensor) == array.tobytes() == torch_bytes(written)
    assert torch.equal(tensor.to(wide), written.to(wide))
    np.testing.assert_array_equal(array.astype(tensor.to(wide).numpy().dtype), written.to(wide).numpy())


def test_pairs_of_four_bits_come_as_upstream_gives_them(tmp_path):
    content = weight_file({"t": entry("F4", [3, 4], 0, 6)}, b"\x12\x34\x56\x78\x9a\xbc")
    path = write(tmp_path / "t", content)
    ours, theirs = (opener(path, "pt").get_tensor("t") for opener in (safe_open, safetensors.safe_open))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert torch_bytes(ours) == torch_bytes(theirs)


@pytest.mark.parametrize(
    ("framework", "dtype", "shape", "nbytes"),
    [
        ("pt", "F6_E2M3", [4], 3),
        ("pt", "F6_E3M2", [4], 3),
        ("pt", "F4", [2, 1], 1),
    ],
)
def test_types_that_a_framework_lacks_are_safetensor_errors(tmp_path, framework, dtype, shape, nbytes):
    path = write(tmp_path / "t", weight_file({"t": entry(dtype, shape, 0, nbytes)}, nbytes))
    file = safe_open(path, framework)
    assert file.keys() == ["t"]
    with pytest.raises(SafetensorError, match=dtype):
        file.get_tensor("t")


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("pt", torch.Tensor),
        ("torch", torch.Tensor),
        ("pytorch", torch.Tensor),
        ("np", np.ndarray),
        ("numpy", np.ndarray),
    ],
)
def test_each_name_of_a_framework_gives_its_tensors(path, word, kind):
    assert type(safe_open(path, word).get_tensor("vector")) is kind


@pytest.mark.parametrize("opener", [safe_open, safetensors.safe_open])
@pytest.mark.parametrize(("framework", "device"), [("numppy", "cpu"), ("", "cpu"), ("np", "cuda"), ("np", 0)])
def test_unknown_frameworks_and_devices_are_refused_when_opening_as_upstream_does(
    path, opener, framework, device
):
    with pytest.raises(safetensors.SafetensorError):
        opener(path, framework, device)


@pytest.mark.parametrize("opener", [safe_open, safetensors.safe_open])
@pytest.mark.parametrize("device", ["bogus", "", -1])
def test_a_torch_device_that_is_none_is_refused_when_opening_as_upstream_does(path, opener, device):
    with pytest.raises(safetensors.SafetensorError):
        opener(path, "pt", device)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_tensors_for_the_cpu_are_not_copied(path, device):
    assert place_in_file(safe_open(path, "pt", device).get_tensor("matrix"), path)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({}, "mapped"),
        ({"backend": "mmap"}, "mapped"),
        ({"backend": "pread"}, None),
        ({"mmap_mode": "read"}, None),
        ({"backend": "pread", "mmap_mode": "read"}, None),
        ({"backend": "mmap", "mmap_mode": "auto"}, "mapped"),
        ({"backend": "mmap", "mmap_mode": "private"}, "mapped"),
        ({"copy": True}, None),
    ],
)
@every_framework
def test_backend_and_mmap_mode_say_where_tensors_lie(path, framework, options, place):
    tensor = safe_open(path, framework, **options).get_tensor("matrix")
    assert (place_in_file(tensor, path) is not None) == (place == "mapped")
    np.testing.assert_array_equal(as_numpy(tensor), WEIGHTS["matrix"])
    loaded = LOADERS[framework](path, **options)["matrix"]
    assert (place_in_file(loaded, path) is not None) == (place == "mapped")


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "pread", "mmap_mode": "auto"},
        {"backend": "pread", "mmap_mode": "shared"},
        {"backend": "pread", "mmap_mode": "private"},
        {"backend": "mmap", "mmap_mode": "read"},
    ],
)
def test_a_backend_at_odds_with_the_mode_is_a_value_error(path, options):
    with pytest.raises(ValueError, match="contradict"):
        safe_open(path, "np", **options)


@pytest.mark.parametrize("options", [{"backend": "fread"}, {"mmap_mode": "fread"}])
def test_unknown_words_are_value_errors_that_show_them(path, options):
    with pytest.raises(ValueError, match="fread"):
        safe_open(path, "np", **options)


@every_framework
def test_after_the_with_block_the_handle_is_closed_and_tensors_stay(path, framework):
    with safe_open(path, framework) as file:
        tensor = file.get_tensor("matrix")
    for ask in (file.keys, file.offset_keys, file.metadata, file.check, lambda: file.get_tensor("matrix")):
        with pytest.raises(SafetensorError, match="File is closed"):
            ask()
    np.testing.assert_array_equal(as_numpy(tensor), WEIGHTS["matrix"])
    tensor[0] = -1
    assert float(tensor[0, 0]) == -1


def test_the_mapping_goes_with_its_last_tensor(path):
    with safe_open(path, "pt") as file:
        tensor = file.get_tensor("matrix")
        part = tensor[3]
    del file, tensor
    assert mappings_of(path)
    del part
    assert mappings_of(path) == []


@pytest.mark.parametrize(
    "handler", [SafetensorError, PagestreamError, ValueError, safetensors.SafetensorError], ids=str
)
def test_our_handlers_and_upstreams_catch_the_error(path, handler):
    with safe_open(path, "np") as file, pytest.raises(handler, match="does not contain tensor nobody"):
        file.get_tensor("nobody")


def test_a_safetensor_error_pickles():
    again = pickle.loads(pickle.dumps(SafetensorError("a.safetensors: bad")))
    assert type(again) is SafetensorError
    assert str(again) == "a.safetensors: bad"


@pytest.mark.parametrize("opener", [safe_open, LOADERS["pt"]])
def test_a_missing_file_has_errno_and_filename(tmp_path, opener):
    missing = str(tmp_path / "missing")
    options = {"framework": "pt"} if opener is safe_open else {}
    with pytest.raises(FileNotFoundError) as caught:
        opener(missing, **options)
    assert caught.value.filename == missing


@every_framework
@every_mode
def test_load_file_gives_what_upstream_gives(path, framework, mode):
    ours, theirs = LOADERS[framework](path, mmap_mode=mode), UPSTREAM_LOADERS[framework](path)
    assert list(ours) != sorted(ours), "the order is the file's"
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert (tensor.dtype, tuple(tensor.shape)) == (theirs[name].dtype, tuple(theirs[name].shape))
        np.testing.assert_array_equal(as_numpy(tensor), as_numpy(theirs[name]))


@every_framework
@every_option
def test_misaligned_tensors_are_aligned_copies(tmp_path, framework, options):
    path = odd_file(tmp_path / "odd")
    tensor = safe_open(path, framework, **options).get_tensor("floats")
    np.testing.assert_array_equal(as_numpy(tensor), FLOATS)
    assert as_numpy(tensor).ctypes.data % 4 == 0
    assert safe_open(path, framework, **options).get_tensor("byte")[0] == 7


# Copy on write


WRITES = {
    "assign": lambda tensor: tensor.__setitem__(..., -1),
    "one row": lambda tensor: tensor.__setitem__(-1, -1),
    "last element": lambda tensor: tensor.__setitem__((-1, -1), -1),
}
TORCH_WRITES = {
    "add_": lambda tensor: tensor.add_(1),
    "zero_": lambda tensor: tensor.zero_(),
    "copy_": lambda tensor: tensor.copy_(torch.ones_like(tensor)),
    "normal_": torch.nn.init.normal_,
    "flipped copy_": lambda tensor: tensor.copy_(tensor.flip(0)),
    "through numpy": lambda tensor: tensor.numpy().fill(-1),
    "through a view": lambda tensor: tensor.view(torch.int32)[1:].fill_(-1),
}
NUMPY_WRITES = {
    "+=": lambda array: array.__iadd__(1),
    "sort": lambda array: array[::-1].sort(0),
    "through a view": lambda array: array.view("i4")[1:].fill(-1),
    "through torch": lambda array: torch.from_numpy(array).mul_(2),
}
EVERY_WRITE = [
    *(("pt", what, write) for what, write in (WRITES | TORCH_WRITES).items()),
    *(("np", what, write) for what, write in (WRITES | NUMPY_WRITES).items()),
]
WRITABLE_OPTIONS = [options for options in OPTIONS if options != {"mmap_mode": "shared"}]
every_write = pytest.mark.parametrize(
    ("framework", "change"),
    [pytest.param(framework, write, id=f"{framework} {what}") for framework, what, write in EVERY_WRITE],
)


@every_write
@pytest.mark.parametrize(
    "options", [{}, {"mmap_mode": "private"}, {"mmap_mode": "read"}, {"copy": True}], ids=str
)
def test_a_write_changes_the_tensor_and_neither_the_file_nor_another_load(path, framework, change, options):
    before = digest(path)
    bystander = LOADERS[framework](path, **options)["matrix"]
    tensor = safe_open(path, framework, **options).get_tensor("matrix")
    change(tensor)
    assert not np.array_equal(as_numpy(tensor), WEIGHTS["matrix"])
    np.testing.assert_array_equal(as_numpy(bystander), WEIGHTS["matrix"])
    np.testing.assert_array_equal(LOADERS[framework](path)["matrix"], WEIGHTS["matrix"])
    assert digest(path) == before


@every_write
def test_a_write_needs_no_permission_to_write_the_file(path, framework, change):
    os.chmod(path, 0o444)
    tensor = LOADERS[framework](path)["matrix"]
    change(tensor)
    assert not np.array_equal(as_numpy(tensor), WEIGHTS["matrix"])
    assert place_in_file(tensor, path)[1] == "rw-p"


@every_framework
def test_a_written_tensor_does_not_touch_its_neighbours(path, framework):
    loaded = LOADERS[framework](path)
    loaded["matrix"][...] = -1
    np.testing.assert_array_equal(as_numpy(loaded["vector"]), WEIGHTS["vector"])
    assert float(loaded["scalar"]) == 1.5


def test_two_torch_tensors_of_a_name_from_one_handle_share_their_memory_as_upstream(path):
    for opener in (safe_open, safetensors.safe_open):
        with opener(path, "pt") as file:
            file.get_tensor("vector")[:] = 9
            assert file.get_tensor("vector").tolist() == [9] * 5


@pytest.mark.parametrize(
    "options", [{}, {"mmap_mode": "private"}, {"mmap_mode": "read"}, {"copy": True}, {"raw": True}], ids=str
)
def test_two_arrays_of_a_name_from_one_handle_are_independent_as_upstream(path, options):
    """This holds whichever comes first: `get_tensor` or `get_slice(name)[:]`."""

    def whole(file, name):
        return file.get_tensor(name)

    def by_brackets(file, name):
        return file.get_slice(name)[:]

    for first, second in itertools.product((whole, by_brackets), repeat=2):
        openers = [(safe_open, options)] + ([] if options.get("raw") else [(safetensors.safe_open, {})])
        for opener, of_opener in openers:
            with opener(path, "np", **of_opener) as file:
                for name in ("matrix", "vector"):
                    written = first(file, name)
                    expected = written.copy()
                    written[:] = 9
                    np.testing.assert_array_equal(second(file, name), expected)
                    np.testing.assert_array_equal(file.get_slice(name)[:2], expected[:2])
                    assert (written == 9).all(), "and the first one keeps what was written"


def test_a_tensor_that_failed_does_not_count_as_handed_out(path):
    with safe_open(path, "np") as file:
        with pytest.raises(SafetensorError, match="missing"):
            file.get_tensor("missing")
        assert file._independent.given == {}


def test_arrays_are_independent_where_there_are_no_shared_mappings(path, direct_mount):
    (direct_mount.parent / "source/weights").write_bytes(Path(path).read_bytes())
    with safe_open(direct_mount / "weights", "np") as file:
        file.get_tensor("matrix")[:] = 9
        np.testing.assert_array_equal(file.get_tensor("matrix"), WEIGHTS["matrix"])
        np.testing.assert_array_equal(file.get_slice("matrix")[1:3], WEIGHTS["matrix"][1:3])


@pytest.mark.parametrize("options", [{}, {"mmap_mode": "read"}], ids=str)
@pytest.mark.parametrize(
    "of", [safe_open.get_tensor, lambda file, name: file.get_slice(name)[...]], ids=["tensors", "and slices"]
)
def test_threads_that_ask_for_one_array_at_once_get_independent_ones(path, options, of):
    threads = 8
    barrier = threading.Barrier(threads)

    def ask(file, number):
        barrier.wait()
        array = of(file, "matrix") if number % 2 else file.get_tensor("matrix")
        barrier.wait()
        array[...] = number
        return array

    with ThreadPoolExecutor(threads) as pool:
        for _ in range(20):
            with safe_open(path, "np", **options) as file:
                arrays = list(pool.map(functools.partial(ask, file), range(threads)))
            assert [int(array.max()) for array in arrays] == list(range(threads))


def test_an_array_equals_the_file_after_a_part_of_it_was_written(path):
    with safe_open(path, "np") as file:
        file.get_slice("matrix")[:2][...] = 9
        np.testing.assert_array_equal(file.get_tensor("matrix"), WEIGHTS["matrix"])


def test_the_first_array_of_a_name_is_not_copied_and_the_second_is(path):
    with safe_open(path, "np") as file:
        assert file.get_slice("matrix")[::2].base.is_copy, "which leaves nothing behind"
        first, second = (file.get_tensor("matrix") for _ in range(2))
        assert place_in_file(first, path)[1] == "rw-p"
        assert second.base.is_copy
    with safe_open(path, "np", mmap_mode="shared") as file:
        first, second = (file.get_tensor("matrix") for _ in range(2))
        assert np.shares_memory(first, second), "neither can be written"


def test_shared_gives_numpy_read_only_views_of_the_page_cache(path):
    with safe_open(path, "np", mmap_mode="shared") as file:
        for name, expected in WEIGHTS.items():
            array = file.get_tensor(name)
            np.testing.assert_array_equal(array, expected, strict=True)
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        assert place_in_file(file.get_tensor("matrix"), path)[1] == "r--s"


@pytest.mark.parametrize("name", ["byte", "floats"])
def test_shared_gives_read_only_arrays_of_misaligned_tensors_too(tmp_path, name):
    array = safe_open(odd_file(tmp_path / "odd"), "np", mmap_mode="shared").get_tensor(name)
    assert not array.flags.writeable


@pytest.mark.parametrize("change", [*WRITES.values(), *TORCH_WRITES.values()], ids=[*WRITES, *TORCH_WRITES])
def test_shared_torch_tensors_are_writable_all_the_same_and_the_file_stays(path, change):
    before = digest(path)
    tensor = safe_open(path, "pt", mmap_mode="shared").get_tensor("matrix")
    change(tensor)
    assert place_in_file(tensor, path)[1] == "rw-p"
    assert not np.array_equal(tensor.numpy(), WEIGHTS["matrix"])
    assert digest(path) == before


@every_framework
def test_a_copy_owns_its_memory(path, framework):
    with safe_open(path, framework, copy=True) as file:
        tensors = {name: file.get_tensor(name) for name in WEIGHTS}
    assert place_in_file(tensors["matrix"], path) is None
    os.truncate(path, 0)
    for name, expected in WEIGHTS.items():
        np.testing.assert_array_equal(as_numpy(tensors[name]), expected)
    tensors["matrix"][...] = -1
    assert float(tensors["matrix"][0, 0]) == -1


@every_framework
@pytest.mark.parametrize("options", [{"copy": True}, {"backend": "pread"}], ids=str)
def test_a_copy_of_a_file_that_was_cut_is_an_error_with_the_path(path, framework, options):
    with safe_open(path, framework, **options) as file:
        os.truncate(path, 4096)
        with pytest.raises(MappedReadError, match="truncated") as caught:
            file.get_tensor("matrix")
    assert caught.value.filename == path


PERMISSIONS = {"shared": "r--s", "private": "rw-p", "read": None}


@pytest.mark.parametrize(
    ("framework", "options", "mode", "reason"),
    [
        ("np", {}, "private", "copy-on-write"),
        ("pt", {}, "private", "copy-on-write"),
        ("np", {"mmap_mode": "shared"}, "shared", ""),
        ("pt", {"mmap_mode": "shared"}, "private", "copy-on-write"),
        ("np", {"mmap_mode": "private"}, "private", "copy-on-write"),
        ("np", {"mmap_mode": "read"}, "read", ""),
        ("pt", {"mmap_mode": "read"}, "read", ""),
        ("np", {"backend": "pread"}, "read", ""),
        ("np", {"copy": True}, "read", "copy=True"),
        ("pt", {"copy": True, "mmap_mode": "shared"}, "read", "copy=True"),
    ],
    ids=str,
)
def test_mode_and_reason_tell_the_truth(path, framework, options, mode, reason):
    file = safe_open(path, framework, **options)
    place = place_in_file(file.get_tensor("matrix"), path)
    assert (file.mode, place and place[1]) == (mode, PERMISSIONS[mode])
    said = file.reason or ""
    assert reason in said
    assert ("copy-on-write" in said) == (mode == "private")
    assert mode != "shared" or file.reason is None


def promised_bytes(path):
    """Returns the bytes of this file's mappings for which the kernel has promised memory."""
    found = re.findall(
        rf"^(\w+)-(\w+) .* {re.escape(os.path.realpath(path))}\n(?:.*\n)*?VmFlags:(.*)",
        Path("/proc/self/smaps").read_text(),
        re.MULTILINE,
    )
    assert found
    # "ac" means accountable; see `Documentation/filesystems/proc.rst` of the kernel.
    return sum(int(end, 16) - int(start, 16) for start, end, flags in found if "ac" in flags.split())


def test_promised_memory_is_seen_by_these_tests(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        assert promised_bytes(path) >= len(mapped)


@every_framework
@pytest.mark.parametrize("mode", ["auto", "shared", "private"])
def test_opening_promises_no_memory_of_the_files_size(tmp_path, framework, mode):
    path = write(tmp_path / "large", weight_file({"t": entry("U8", [8 * GIB], 0, 8 * GIB)}))
    header_end = os.path.getsize(path)
    os.truncate(path, header_end + 8 * GIB)
    with safe_open(path, framework, mmap_mode=mode) as file:
        tensor = file.get_tensor("t")
        assert tensor.nbytes == 8 * GIB
        assert promised_bytes(path) == 0
        if mode != "shared" or framework == "pt":
            tensor[-1] = 7
            assert int(tensor[-1]) == 7
        assert promised_bytes(path) == 0
    assert os.stat(path).st_blocks * 512 < 1 << 20, "a write must not reach the file"


# Writing is upstream's own code


@every_framework
def test_save_and_save_file_round_trip(tmp_path, framework):
    ours = {"np": pagestream.safetensors.numpy, "pt": pagestream.safetensors.torch}[framework]
    wrap = torch.from_numpy if framework == "pt" else np.asarray
    tensors = {name: wrap(array.copy()) for name, array in WEIGHTS.items()}
    path = tmp_path / "saved"
    ours.save_file(tensors, path, metadata={"k": "v"})
    write(tmp_path / "bytes", ours.save(tensors))
    for saved in (path, tmp_path / "bytes"):
        loaded = ours.load_file(saved)
        assert loaded.keys() == WEIGHTS.keys()
        for name, tensor in loaded.items():
            np.testing.assert_array_equal(as_numpy(tensor), WEIGHTS[name], strict=True)
    assert safe_open(path, framework).metadata() == {"k": "v"}


@pytest.mark.parametrize(
    "save",
    [
        lambda _: pagestream.safetensors.numpy.save({"a": np.zeros(2, "U4")}),
        lambda path: pagestream.safetensors.numpy.save_file({"a": np.zeros(2, "U4")}, path / "a"),
    ],
    ids=["numpy type", "numpy type in a file"],
)
def test_errors_of_saving_come_out_as_ours(tmp_path, save):
    with pytest.raises(SafetensorError) as caught:
        save(tmp_path)
    assert type(caught.value) is SafetensorError
    assert type(caught.value.__cause__) is safetensors.SafetensorError
    assert str(caught.value) == str(caught.value.__cause__)


@pytest.mark.parametrize(
    "save",
    [
        lambda path: pagestream.safetensors.numpy.save_file({"a": np.zeros(2)}, path),
        lambda path: pagestream.safetensors.torch.save_file({"a": torch.zeros(2)}, path),
    ],
    ids=["numpy", "torch"],
)
def test_a_file_is_not_saved_to_a_folder_that_is_missing(tmp_path, save):
    path = tmp_path / "no" / "folder"
    with pytest.raises(SafetensorError) as caught:
        save(path)
    assert str(caught.value) == f"{path}: the file cannot be saved: No such file or directory"
    assert type(caught.value.__cause__) is FileNotFoundError


@every_framework
@every_option
def test_a_file_can_be_saved_over_while_its_tensors_are_in_use(path, framework, options):
    """Upstream's issue 764."""
    ours = {"np": pagestream.safetensors.numpy, "pt": pagestream.safetensors.torch}[framework]
    earlier = ours.load_file(path, **options)
    loaded = dict(ours.load_file(path, **options))
    loaded["matrix"] = loaded["matrix"] + 1
    if framework == "pt" or options.get("mmap_mode") != "shared":
        loaded["vector"] += 10
    expected = {name: as_numpy(tensor).copy() for name, tensor in loaded.items()}
    ours.save_file(loaded, path)
    for name, array in expected.items():
        np.testing.assert_array_equal(as_numpy(loaded[name]), array)
        np.testing.assert_array_equal(as_numpy(ours.load_file(path)[name]), array)
        np.testing.assert_array_equal(as_numpy(earlier[name]), WEIGHTS[name])


def test_where_there_are_no_copy_on_write_pages_mode_and_reason_say_so(tmp_path):
    """RLIMIT_DATA limits private writable memory: the kernel refuses the mapping, so tensors are copies."""
    path = tmp_path / "large.safetensors"
    safetensors.numpy.save_file({"a": np.arange(32 << 20, dtype="u1")}, path)
    code = PROGRAMS / "safetensors/where_there_are_no_copy_on_write.py"
    mode, reason = output_of(code, path).split("|")
    assert mode == "read"
    assert reason.startswith("MAP_PRIVATE with PROT_WRITE: ENOMEM")
    assert "RLIMIT_DATA (ulimit -d) allows" in reason


@pytest.mark.parametrize("name", ["missing", "lone surrogate \udcff"])
def test_a_missing_name_is_an_error_of_its_kind(tmp_path, name):
    path = tmp_path / "f.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(1)}, path)
    with pytest.raises(SafetensorError, match="does not contain tensor"):
        safe_open(path, "np").get_tensor(name)
    weights = pagestream.open_checkpoint(path)
    assert name not in weights
    assert weights.get(name) is None
    assert weights.get(5) is None
    with pytest.raises(KeyError):
        weights[name]


def test_checkpoints_are_equal_to_themselves(tmp_path):
    path = tmp_path / "f.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(3)}, path)
    one, other = pagestream.open_checkpoint(path), pagestream.open_checkpoint(path)
    assert one == one  # noqa: PLR0124 - that is the point
    assert one != other
    assert len({one, other}) == 2


def test_a_file_without_a_name_is_checked_by_its_content():
    """A `memfd_create` file never had a name, so it does not count as deleted."""
    descriptor = os.memfd_create("weights")
    with open(descriptor, "wb") as file:
        file.write(safetensors.numpy.save({"x": np.arange(3, dtype="f4")}))
        file.flush()
        with _safe_open_handle(file, "np") as opened:
            opened.check()
            assert opened.get_tensor("x").tolist() == [0, 1, 2]
            os.truncate(descriptor, 10)
            with pytest.raises(FileChangedError, match="truncated"):
                opened.check()


def test_a_file_whose_name_is_a_number_is_checked_by_its_content(path):
    """`os.fdopen` sets the name to a number, which is not a path."""
    with os.fdopen(os.open(path, os.O_RDONLY), "rb") as file, _safe_open_handle(file, "np") as opened:
        opened.check()
        os.truncate(path, 10)
        with pytest.raises(FileChangedError, match="truncated"):
            opened.check()


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_a_file_is_closed_by_hand_too_and_prints_the_same_each_time(path, framework):
    file = safe_open(path, framework)
    tensor, part, text = file.get_tensor("matrix"), file.get_slice("matrix"), repr(file)
    assert not file.closed
    assert text == repr(safe_open(path, framework))
    assert repr(path) in text
    file.close()
    file.close()
    assert file.closed
    assert repr(file) == text
    assert (part[...] == tensor).all()
    with pytest.raises(SafetensorError, match="File is closed"):
        file.get_tensor("matrix")
