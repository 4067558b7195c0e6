"""Slices of tensors: NumPy's basic indexing in every mode and framework, with no unneeded byte read."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import ml_dtypes  # noqa: F401 - upstream's NumPy reader supports BF16 only after this import
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pagestream import open_checkpoint
from pagestream.errors import FileChangedError, MappedReadError, SafetensorError, SliceError
from pagestream.safetensors import safe_open
from pagestream.weights.indexing import is_advanced, select

from support import real
from support.mappings import mappings_of, place_in_file
from support.process import PROGRAMS, output_of
from support.weight_files import ELEMENT_TYPES, changed_in_place, entry, odd_file, weight_file, write

MODES = ["shared", "private", "read"]
FRAMEWORKS = ["np", "pt"]
# The types that both frameworks have, by size.
CODES = {"U8": "u1", "I16": "<i2", "F32": "<f4", "I64": "<i8", "C64": "<c8"}
PAGE = 4096

every_mode = pytest.mark.parametrize("mode", MODES)
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS)

MATRIX = np.arange(2048 * 1024, dtype="<f4").reshape(2048, 1024)  # 8 MiB, rows of a page


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slices")
    header = {
        "matrix": entry("F32", MATRIX.shape, 0, MATRIX.nbytes),
        "small": entry("F32", [10, 5], MATRIX.nbytes, MATRIX.nbytes + 200),
        "scalar": entry("F32", [], MATRIX.nbytes + 200, MATRIX.nbytes + 204),
        "empty": entry("F32", [3, 0, 4], MATRIX.nbytes + 204, MATRIX.nbytes + 204),
    }
    # The data begin on a page boundary, so the test knows which pages a slice needs.
    text = weight_file(header)[8:].decode()
    data = MATRIX.tobytes() + SMALL.tobytes() + np.float32(1.5).tobytes()
    return write(folder / "weights", weight_file(text.ljust(PAGE - 8), data))


SMALL = np.arange(50, dtype="<f4").reshape(10, 5)


def as_numpy(tensor):
    return tensor.numpy() if isinstance(tensor, torch.Tensor) else tensor


def part_of(path, name, index, mode, framework):
    """Reads a part of a tensor in each of the possible ways."""
    with safe_open(path, framework, mmap_mode=mode) as file:
        return as_numpy(file.get_slice(name)[index])


# --- agreement with NumPy -------------------------------------------------------------------------


@st.composite
def tensors_and_indices(draw):
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=7))
    code = draw(st.sampled_from(sorted(CODES)))
    pad = draw(st.integers(0, 9))
    index = draw(arrays.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    return code, shape, pad, index


@settings(
    max_examples=400,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tensors_and_indices())
def test_a_part_is_what_numpy_makes_of_the_index(tmp_path, drawn):
    code, shape, pad, index = drawn
    array = np.random.default_rng(0).integers(0, 100, shape).astype(CODES[code])
    array = np.asarray(array, order="C").reshape(shape)
    data = bytes(pad) + array.tobytes()
    header = {"pad": entry("U8", [pad], 0, pad), "t": entry(code, shape, pad, len(data))}
    path = write(tmp_path / "t", weight_file(header, data))
    expected = array[index]
    for mode, framework in product(MODES, FRAMEWORKS):
        found = part_of(path, "t", index, mode, framework)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), (mode, framework)
        np.testing.assert_array_equal(found, expected)
        assert found.flags.c_contiguous
        owned = open_checkpoint(path, mmap_mode=mode).read("t", index)
        np.testing.assert_array_equal(owned, expected)
        assert owned.flags.writeable
        assert owned.flags.c_contiguous


numbers = st.integers(-12, 12)
any_slice = st.builds(slice, st.none() | numbers, st.none() | numbers, st.none() | numbers.filter(bool))
any_index = any_slice | st.lists(numbers | any_slice | st.none() | st.just(...), max_size=6).map(tuple)


@settings(max_examples=3000)
@given(arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=9), any_index)
def test_indices_behave_as_in_numpy(shape, index):
    array = np.arange(int(np.prod(shape))).reshape(shape)
    try:
        expected = array[index]
    except IndexError:
        with pytest.raises(IndexError):
            select(shape, index)
        return
    found = select(shape, index)
    assert (found.shape, found.size) == (np.shape(expected), np.size(expected))
    if found.size:
        assert found.first == np.ravel(expected)[0]
        items = np.lib.stride_tricks.as_strided(
            array.reshape(-1)[found.first :], found.shape, [8 * stride for stride in found.strides]
        )
        np.testing.assert_array_equal(items, expected)


@every_mode
@pytest.mark.parametrize(("code", "torch_name", "dtype"), ELEMENT_TYPES, ids=str)
def test_every_type_can_be_sliced(tmp_path, code, torch_name, dtype, mode):
    raw = np.random.default_rng(1).integers(0, 2, (6, 9 * np.dtype(dtype).itemsize)).astype("u1")
    data = b"\x07" + raw.tobytes()  # misaligned
    header = {"byte": entry("U8", [1], 0, 1), "t": entry(code, [6, 9], 1, len(data))}
    path = write(tmp_path / "t", weight_file(header, data))
    whole = raw.view(dtype)
    for index in (np.s_[1:3], np.s_[:, ::2], np.s_[::-1, 4:1:-1], np.s_[2, 3], np.s_[..., None, 1], np.s_[:]):
        expected = np.ascontiguousarray(whole[index]).reshape(np.shape(whole[index]))
        with (
            safe_open(path, "np", mmap_mode=mode) as file,
            safe_open(path, "pt", mmap_mode=mode) as torch_file,
        ):
            array, tensor = file.get_slice("t")[index], torch_file.get_slice("t")[index]
        assert (array.dtype, array.shape) == (np.dtype(dtype), expected.shape)
        assert array.flags.aligned
        assert (tensor.dtype, tuple(tensor.shape)) == (getattr(torch, torch_name), expected.shape)
        torch_bytes = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        assert array.tobytes() == torch_bytes == expected.tobytes()


@every_mode
def test_pairs_of_four_bits_are_indexed_as_torch_counts_them(tmp_path, mode):
    raw = np.arange(12, dtype="u1").reshape(3, 4)
    path = write(tmp_path / "t", weight_file({"t": entry("F4", [3, 8], 0, 12)}, raw.tobytes()))
    part = safe_open(path, "pt", mmap_mode=mode).get_slice("t")
    assert (part.get_shape(), part.get_dtype()) == ([3, 8], "F4")
    for index in (np.s_[1], np.s_[:, 1:3], np.s_[::-1], np.s_[2, 3], np.s_[...]):
        found = part[index]
        assert found.dtype == torch.float4_e2m1fn_x2
        np.testing.assert_array_equal(found.view(torch.uint8).numpy(), raw[index])
    theirs = safetensors.safe_open(path, "pt").get_tensor("t")  # upstream's slices of this type fail
    assert torch.equal(part[1:].view(torch.uint8), theirs[1:].view(torch.uint8))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("code", "bits"), [("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6)])
@pytest.mark.parametrize("columns", [8, 3])  # 3 elements of 4 or 6 bits do not end on a byte boundary
def test_elements_smaller_than_a_byte_are_indexed_one_by_one_in_numpy(tmp_path, mode, code, bits, columns):
    shape = (4, 2, columns)
    nbytes = 8 * columns * bits // 8
    raw = np.random.default_rng(0).integers(0, 256, nbytes, "u1").tobytes()
    path = write(tmp_path / "t", weight_file({"t": entry(code, list(shape), 0, nbytes)}, raw))
    whole = safe_open(path, "np").get_tensor("t")
    part, weights = (
        safe_open(path, "np", mmap_mode=mode).get_slice("t"),
        open_checkpoint(path, mmap_mode=mode),
    )
    for index in (
        np.s_[1],
        np.s_[1:, ::-1, 1:7:2],
        np.s_[..., 2],
        np.s_[None, 2, :, None, ::-2, None],
        np.s_[::2, 1, 1],
        np.s_[3, 1, -1],
        np.s_[:0],
        np.s_[...],
        np.s_[None],
    ):
        expected = whole[index]
        for found in (part[index], weights.read("t", index)):
            assert found.dtype == whole.dtype
            assert np.shape(found) == np.shape(expected)
            np.testing.assert_array_equal(np.asarray(found).view("u1"), np.asarray(expected).view("u1"))
        out = np.empty(np.shape(expected), whole.dtype)
        assert weights.read("t", index, out=out) is out
        np.testing.assert_array_equal(out.view("u1"), np.asarray(expected).view("u1"))
    with pytest.raises(SliceError, match="out of bounds"):
        part[0, 0, columns]
    with pytest.raises(IndexError, match="out of bounds"):
        weights.read("t", np.s_[0, 0, columns])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("framework", ["np", "pt"])
def test_raw_slices_count_bytes(tmp_path, mode, framework):
    raw = np.arange(24, dtype="u1").reshape(2, 12)
    path = write(tmp_path / "t", weight_file({"t": entry("F32", [2, 3], 0, 24)}, raw.tobytes()))
    part = safe_open(path, framework, raw=True, mmap_mode=mode).get_slice("t")
    weights = open_checkpoint(path, raw=True, mmap_mode=mode)
    assert (part.get_shape(), part.get_dtype()) == ([2, 12], "U8")
    for index in (np.s_[1], np.s_[:, 2:5], np.s_[::-1, ::3]):
        np.testing.assert_array_equal(np.asarray(part[index]), raw[index])
        np.testing.assert_array_equal(weights.read("t", index), raw[index])
    np.testing.assert_array_equal(weights["t"], raw)


@pytest.mark.parametrize(("dtype", "shape", "nbytes"), [("F4", [2, 1], 1), ("F6_E2M3", [4], 3)])
def test_types_that_torch_lacks_are_safetensor_errors(tmp_path, dtype, shape, nbytes):
    path = write(tmp_path / "t", weight_file({"t": entry(dtype, shape, 0, nbytes)}, nbytes))
    with pytest.raises(SafetensorError, match=dtype):
        safe_open(path, "pt").get_slice("t")[...]


def test_upstreams_own_slices_are_the_same(path):
    ours, theirs = (opener(path, "np").get_slice("small") for opener in (safe_open, safetensors.safe_open))
    assert (
        (ours.get_shape(), ours.get_dtype()) == (theirs.get_shape(), theirs.get_dtype()) == ([10, 5], "F32")
    )
    indices = (
        np.s_[:],
        (),
        np.s_[:2],
        np.s_[:, :2],
        np.s_[0, :2],
        np.s_[2:, 0],
        np.s_[2:, -5],
        np.s_[::3],
        [],
    )
    for index in indices:
        np.testing.assert_array_equal(ours[index], theirs[index])
        assert ours[index].shape == theirs[index].shape


@every_framework
@every_mode
def test_edges(path, mode, framework):
    assert part_of(path, "scalar", (), mode, framework) == 1.5
    assert part_of(path, "scalar", (None, ..., None), mode, framework).shape == (1, 1)
    assert part_of(path, "small", [], mode, framework).shape == (0, 5)
    assert part_of(path, "small", np.s_[:20], mode, framework).shape == (10, 5)  # clipped, as in NumPy
    assert part_of(path, "small", np.s_[10:10], mode, framework).shape == (0, 5)
    assert part_of(path, "small", np.s_[2:1, 0], mode, framework).shape == (0,)
    assert part_of(path, "empty", np.s_[1:], mode, framework).shape == (2, 0, 4)
    assert part_of(path, "empty", np.s_[1, :, ::-2], mode, framework).shape == (0, 2)
    many = (None,) * 60  # with two dimensions 62, NumPy's limit is 64
    assert part_of(path, "small", (*many, ..., 1), mode, framework).shape == (1,) * 60 + (10,)
    assert part_of(path, "small", (np.int64(-1), np.uint8(2)), mode, framework) == SMALL[-1, 2]


def test_shapes_beyond_what_numpy_can_hold(tmp_path):
    huge = {"a": entry("U8", [0, 1 << 62, 1 << 62], 0, 0), "b": entry("U8", [1] * 100 + [3], 0, 3)}
    path = write(tmp_path / "t", weight_file(huge, b"abc"))
    weights = open_checkpoint(path)
    assert weights.read("a", np.s_[:, 0, 5]).shape == (0,)
    assert safe_open(path, "np").get_slice("a")[:, 1:3, -1].shape == (0, 2)
    assert weights.read("b", (0,) * 99).tobytes() == b"abc"
    assert select((1 << 62, 1 << 62), np.s_[-1, ::-1]).first == (1 << 124) - 1


# --- refused indices ------------------------------------------------------------------------------

BAD = [
    (np.s_[2:, -6], "Invalid index -6 for dimension 1 of size 5"),
    (
        np.s_[2:, 20],
        (
            "Error during slicing [2:, 20] with shape [10, 5]: "
            "index 20 out of bounds for tensor dimension #1 of size 5"
        ),
    ),
    ([0, 1], "Non empty lists are not implemented"),
    (np.s_[..., ...], "Only one ellipsis (...) is allowed in slice index"),
    (np.s_[0, 0, 0], "2-dimensional"),
    (True, "bool True"),
    (np.s_[:, False], "bool False"),
    (np.True_, "bool True"),
    (1.0, "of type float"),
    (np.float32(1), "of type float32"),
    ("a", "of type str"),
    (np.array([0, 1]), "of type ndarray"),
    (np.array(1), "of type ndarray"),
    (np.zeros((10, 5), bool), "of type ndarray"),
    (torch.tensor(True), "of type Tensor"),
    (torch.tensor([1]), "of type Tensor"),
    ((0, [1]), "of type list"),
    (range(3), "of type range"),
    (slice(None, None, 0), "slice step cannot be zero"),
    (slice(0.5, None), "slice indices must be integers"),
    (slice(None, np.array([1, 2])), "integer"),
]


@pytest.mark.parametrize(("index", "text"), BAD, ids=lambda value: str(value)[:30])
@every_framework
def test_a_bad_index_says_what_is_wrong_with_it(path, index, text, framework):
    if framework == "pt" and is_advanced(index):
        return  # torch accepts it, or raises its own error
    with safe_open(path, framework) as file, pytest.raises(SliceError) as caught:
        file.get_slice("small")[index]
    error = caught.value
    assert text in str(error)
    assert error.__notes__ == [f"The index is for tensor 'small' of {path}."]
    assert isinstance(error, SafetensorError)
    assert isinstance(error, IndexError)
    assert isinstance(error, safetensors.SafetensorError)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args) == (SliceError, error.args)
    with pytest.raises(SliceError) as caught, open_checkpoint(path) as weights:
        weights.read("small", index)
    assert str(caught.value).startswith(f"{path}: tensor 'small': ")
    assert text in str(caught.value)


@pytest.mark.parametrize(("index", "text"), BAD[:3])
def test_texts_are_upstreams(path, index, text):
    with safe_open(path, "np") as ours, pytest.raises(SafetensorError) as our_error:
        ours.get_slice("small")[index]
    with (
        safetensors.safe_open(path, "np") as theirs,
        pytest.raises(safetensors.SafetensorError) as their_error,
    ):
        theirs.get_slice("small")[index]
    assert str(our_error.value) == str(their_error.value) == text


def test_names_and_closed_files(path):
    with safe_open(path, "np") as file:
        with pytest.raises(SafetensorError, match="does not contain tensor nothing"):
            file.get_slice("nothing")
        part = file.get_slice("small")
    assert "[10, 5]" in repr(part)
    with pytest.raises(SafetensorError, match="File is closed"):
        file.get_slice("small")
    weights = open_checkpoint(path)
    with pytest.raises(KeyError):
        weights.read("nothing", 0)
    weights.close()
    with pytest.raises(ValueError, match="closed"):
        weights.read("small", 0)


# --- memory ownership -----------------------------------------------------------------------------


@every_framework
@every_mode
def test_a_single_run_is_a_view_and_other_parts_are_copies(path, mode, framework):
    with safe_open(path, framework, mmap_mode=mode) as file:
        part = file.get_slice("matrix")
    run, rows, item, column = part[10:20], part[3], part[5, 7], part[:, 1]
    place = PAGE + 10 * MATRIX[0].nbytes
    if mode == "read":
        assert place_in_file(run, path) is None
    else:
        assert place_in_file(run, path)[0] == place
        assert place_in_file(rows, path)[0] == PAGE + 3 * MATRIX[0].nbytes
        assert place_in_file(item, path)[0] == PAGE + 5 * MATRIX[0].nbytes + 28
    assert place_in_file(column, path) is None
    copied = safe_open(path, framework, mmap_mode=mode, copy=True).get_slice("matrix")[10:20]
    assert place_in_file(copied, path) is None
    read_only = mode == "shared" and framework == "np"
    assert as_numpy(run).flags.writeable != read_only
    column[0] = copied[0] = 7.0
    if not read_only:
        run[0] = 7.0
    np.testing.assert_array_equal(open_checkpoint(path).read("matrix"), MATRIX)  # the file is unchanged


@every_mode
def test_a_slice_keeps_the_file_when_the_handle_is_closed_and_lets_it_go_after(path, mode):
    def descriptors():
        gc.collect()
        links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
        return sum(os.path.realpath(link) == os.path.realpath(path) for link in links)

    before = descriptors(), len(mappings_of(path))
    with safe_open(path, "np", mmap_mode=mode) as file:
        part = file.get_slice("matrix")
    del file
    np.testing.assert_array_equal(part[::100, 3], MATRIX[::100, 3])
    run = part[100:102]
    del part
    np.testing.assert_array_equal(run, MATRIX[100:102])
    del run
    assert (descriptors(), len(mappings_of(path))) == before


@every_mode
def test_misaligned_tensors_are_copied(tmp_path, mode):
    path = odd_file(tmp_path / "odd")
    part = safe_open(path, "np", mmap_mode=mode).get_slice("floats")
    assert part[1:3].flags.aligned
    assert place_in_file(part[1:3], path) is None
    np.testing.assert_array_equal(part[1:3], [1, 2])
    np.testing.assert_array_equal(part[::-2], [4, 2, 0])


def test_read_fills_out(path):
    weights = open_checkpoint(path)
    out = np.zeros((2048, 4), "f4")
    assert weights.read("matrix", np.s_[:, :8:2], out=out) is out
    np.testing.assert_array_equal(out, MATRIX[:, :8:2])
    for wrong in (np.zeros((2048, 5), "f4"), np.zeros((2048, 4), "f8"), np.zeros((4, 2048), "f4").T):
        with pytest.raises(ValueError, match=r"of shape \(2048, 4\)"):
            weights.read("matrix", np.s_[:, :8:2], out=wrong)
    out.flags.writeable = False
    with pytest.raises(TypeError, match="writable"):
        weights.read("matrix", np.s_[:, :8:2], out=out)
    assert weights.read("matrix", index=np.s_[3]).shape == (1024,)
    np.testing.assert_array_equal(weights.read("scalar"), 1.5)


# --- bytes read -----------------------------------------------------------------------------------

# The program times two reads for this many runs. On a busy machine, the file can be as slow as a network
# mount, and reading a gap of one page costs less than another request. `rules.rs` tests the decision with a
# fake clock.
EVERY_OTHER_ROW = np.s_[1:2048:2]
# Each case: an index into 2048 rows of one page each, the bytes read (with gaps below a page), the pages.
PARTS = [
    (np.s_[5:8], 3 * PAGE, 3),
    (np.s_[5:1005:100], 10 * PAGE, 10),
    (EVERY_OTHER_ROW, 1024 * PAGE, 1024),
    (np.s_[1000:0:-250, 8:16], 4 * 32, 4),
    (np.s_[:60:2, 0], 30 * 4, 30),
    (np.s_[:64, ::512], 64 * PAGE - (PAGE - 4 - 2048), 64),
    (np.s_[7, 3:900], 897 * 4, 1),
    (np.s_[7, 7], 4, 1),
    (np.s_[:0, 3], 0, 0),
]

TIMED_BYTES = 2 * 64
# A mapped file reads the read-ahead setting of its device once, for example "8192\n".
SETTING_BYTES = 16
# The size of reads that bypass the page cache.
PIECE_BYTES = 128 << 10

COUNT = PROGRAMS / "weights_slices/count.py"
# With several arenas, malloc reads the processor count from a file, and the test would count these calls.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}


def counted(path, mode, indices, *, cold):
    texts = [f"({','.join(map(str, index if isinstance(index, tuple) else (index,)))},)" for index in indices]
    lines = output_of(COUNT, path, mode, int(cold), *texts, **ONE_ARENA).splitlines()
    return [tuple(map(int, line.split())) for line in lines]


def least_of(nbytes, mode):
    """Returns the fewest bytes that a part needs. The gap between two short pieces is not read."""
    return nbytes if mode == "shared" else nbytes - nbytes // PIECE_BYTES * PAGE


def most_of(index, nbytes, pages):
    """Returns the most bytes that are read for a part."""
    gaps = (pages - 1) * PAGE + TIMED_BYTES if index == EVERY_OTHER_ROW else 0
    return nbytes + gaps + SETTING_BYTES


@every_mode
def test_only_the_needed_bytes_are_read(path, mode):
    found = counted(path, mode, [index for index, _, _ in PARTS], cold=False)
    for (rchar, _), (index, nbytes, pages) in zip(found, PARTS, strict=True):
        # Cached bytes may be copied from a shared mapping.
        least = 0 if mode == "shared" else least_of(nbytes, mode)
        assert least <= rchar <= most_of(index, nbytes, pages), index


@every_mode
def test_only_the_needed_pages_come_from_the_disk(path, mode, tmp_path):
    if real.file_system_type(tmp_path) in ("tmpfs", "overlay"):
        real.missing("a folder for temporary files on a disk")
    found = counted(path, mode, [index for index, _, _ in PARTS], cold=True)
    for (rchar, read), (index, nbytes, pages) in zip(found, PARTS, strict=True):
        assert pages <= read // PAGE <= (2 * pages - 1 if index == EVERY_OTHER_ROW else pages), index
        assert least_of(nbytes, mode) <= rchar <= most_of(index, nbytes, pages), index


@every_mode
def test_each_read_is_one_extent(path, mode):
    """Ten distant rows take ten calls, ten adjacent rows one, a column one per row, and strided rows one."""
    indices = {"0:1000:100": 10, "20:30": 1, "::64, :8": 32, "3, ::2": 1, "::4096, ::-3": 1, "0:0": 0}
    printed = output_of(PROGRAMS / "weights_slices/reads_of_parts.py", path, mode, *indices, **ONE_ARENA)
    assert list(map(int, printed.split())) == list(indices.values())


# --- real mounts, failures, threads ---------------------------------------------------------------


def test_past_the_page_cache_many_threads_read_a_run(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    array = np.random.default_rng(0).integers(0, 256, (64, 128 << 10), dtype=np.uint8)
    safetensors.numpy.save_file({"t": array}, source / "model.safetensors")
    with (
        real.slow_fuse(source, tmp_path / "mount", gather=24, direct_io=True) as slow,
        safe_open(slow.path / "model.safetensors", "np") as file,
    ):
        assert (file.get_slice("t")[:32] == array[:32]).all()
    # 4 MiB take 32 pieces of 128 KiB. The first piece is read alone.
    assert slow.counts["most_in_flight"] >= 24


@pytest.mark.parametrize("mode", ["auto", "private", "read"])
def test_a_mount_that_refuses_shared_mappings(direct_mount, path, mode):
    inside = write(direct_mount.parent / "source/weights", Path(path).read_bytes())
    assert inside
    for framework in FRAMEWORKS:
        with safe_open(direct_mount / "weights", framework, mmap_mode=mode) as file:
            part = file.get_slice("matrix")
            assert file.mode == ("read" if mode == "read" else "private")
        for index in (np.s_[5:8], np.s_[::-100, ::3], np.s_[:, 1], np.s_[:, ::2]):
            np.testing.assert_array_equal(as_numpy(part[index]), MATRIX[index])


@pytest.mark.parametrize(("mode", "direct"), [("shared", False), ("private", True), ("read", True)])
def test_a_slow_mount_is_read_by_many_threads_and_nothing_twice(path, tmp_path, mode, direct):
    source = tmp_path / "source"
    source.mkdir()
    write(source / "weights", Path(path).read_bytes())
    with real.slow_fuse(source, tmp_path / "slow", delay_ms=2, gather=8, direct_io=direct) as slow:
        weights = open_checkpoint(slow.path / "weights", mmap_mode=mode)
        found = weights.read("matrix", np.s_[::32, 3:5])  # 64 reads, too far from each other to be joined
        weights.close()
    np.testing.assert_array_equal(found, MATRIX[::32, 3:5])
    assert slow.counts["read_requests"] <= 64 + 8
    assert slow.counts["most_in_flight"] >= 8


@pytest.mark.parametrize("mode", MODES)
def test_a_mount_that_fails_is_an_exception(path, tmp_path, mode):
    source = tmp_path / "source"
    source.mkdir()
    write(source / "weights", Path(path).read_bytes())
    with real.slow_fuse(source, tmp_path / "slow", fail_after=4, delay_ms=2) as slow:
        weights = open_checkpoint(slow.path / "weights", mmap_mode=mode)
        with pytest.raises(MappedReadError) as caught:
            weights.read("matrix", np.s_[1000::100, 0])
        assert caught.value.filename == str(slow.path / "weights")
        weights.close()


@every_framework
@every_mode
def test_a_file_that_is_cut_or_rewritten_raises(path, tmp_path, mode, framework):
    content = Path(path).read_bytes()
    cut = write(tmp_path / "cut", content)
    part = safe_open(cut, framework, mmap_mode=mode).get_slice("matrix")
    weights = open_checkpoint(cut, mmap_mode=mode)
    os.truncate(cut, PAGE + MATRIX.nbytes // 2)
    for index in (np.s_[:, 1], np.s_[::-1], np.s_[:10, ::3]):
        with pytest.raises((MappedReadError, FileChangedError)):
            part[index]
        with pytest.raises((MappedReadError, FileChangedError)):
            weights.read("matrix", index)
    rewritten = write(tmp_path / "rewritten", content)
    part = safe_open(rewritten, framework, mmap_mode=mode).get_slice("matrix")
    changed_in_place(rewritten, lambda: write(rewritten, content))
    with pytest.raises(FileChangedError):
        part[:, 1]


@every_mode
def test_many_threads_slice_one_file(path, mode):
    with safe_open(path, "np", mmap_mode=mode) as file:
        part = file.get_slice("matrix")
    weights = open_checkpoint(path, mmap_mode=mode)

    def check(number):
        index = np.s_[number % 7 :: 1 + number % 5, :: -1 - number % 3]
        np.testing.assert_array_equal(part[index], MATRIX[index])
        np.testing.assert_array_equal(weights.read("matrix", index), MATRIX[index])
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(64)))


def test_a_fork_goes_on_slicing(path):
    code = PROGRAMS / "weights_slices/a_fork_goes_on_slicing.py"
    assert output_of(code, path) == "both"


def test_ctrl_c_works_while_storage_is_slow(path, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    write(source / "weights", Path(path).read_bytes())
    with real.slow_fuse(source, tmp_path / "slow", delay_ms=200, direct_io=True, threads=1) as slow:
        weights = open_checkpoint(slow.path / "weights", mmap_mode="read")
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            weights.read("matrix", np.s_[::4, 0])  # 512 reads, one at a time
        timer.join()
        weights.close()
    assert slow.counts["read_requests"] < 300


def test_memory_stays_small_for_any_slice(tmp_path):
    """For a sparse file of 64 GiB, neither the plan nor the reads take memory beyond the result."""
    code = PROGRAMS / "weights_slices/memory_stays_small_whatever_is_sliced.py"
    path = tmp_path / "sparse"
    rows, columns = 1 << 20, 1 << 16
    write(path, weight_file({"t": entry("U8", [rows, columns], 0, rows * columns)}))
    os.truncate(path, os.path.getsize(path) + rows * columns)
    assert int(output_of(code, path)) < 16 << 10
