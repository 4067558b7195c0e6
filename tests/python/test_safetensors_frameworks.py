"""flax, tensorflow, mlx and paddle through NumPy; tensors in bytes; unusual types and misaligned tensors."""

from __future__ import annotations

import array
import mmap
import re

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import pagestream.safetensors as ours
import pagestream.safetensors.numpy
import pagestream.safetensors.torch  # noqa: F401 - as `ours.torch`
from pagestream import open_checkpoint
from pagestream.errors import FormatError, SliceError
from pagestream.safetensors import SafetensorError, TensorMeta, safe_open

from support.mappings import place_in_file
from support.process import PROGRAMS, output_of
from support.weight_files import ELEMENT_TYPES, FLOATS, entry, odd_file, weight_file, write

WEIGHTS = {
    "matrix": np.arange(12, dtype="f4").reshape(3, 4),
    "vector": np.arange(5, dtype="i4"),
    "scalar": np.array(1.5, "f4"),
    "empty": np.zeros((2, 0), "f4"),
    "half": np.arange(4).astype(ml_dtypes.bfloat16),
}


@pytest.fixture
def path(tmp_path):
    """Returns a file of `WEIGHTS`."""
    safetensors.numpy.save_file(WEIGHTS, tmp_path / "weights.safetensors", {"format": "np"})
    return str(tmp_path / "weights.safetensors")


FOLDER = PROGRAMS / "safetensors_frameworks"


@pytest.fixture(scope="module")
def by_tensorflow(tmp_path_factory):
    """Returns the lines of two programs in one process: TensorFlow takes eight seconds to import."""
    folder = tmp_path_factory.mktemp("tensorflow")
    ours.numpy.save_file(WEIGHTS, folder / "w")
    raw = np.arange(12, dtype="u1")
    path = write(folder / "four_bits", weight_file({"t": entry("F4", [3, 8], 0, 12)}, raw.tobytes()))
    round_trip = (FOLDER / "round_trip.py", "tensorflow", "tf tensorflow", folder / "w", "tensorflow.Tensor")
    four_bits = (FOLDER / "four_bits_are_sliced_before_tensorflow_gets.py", path)
    return output_of(
        FOLDER / "one_after_another.py", *round_trip, folder / "other", "--", *four_bits
    ).splitlines()


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("flax", "flax jax", "jax.Array"),
        ("mlx", "mlx", "mlx.core.array"),
        ("paddle", "paddle", "paddle.Tensor"),
    ],
)
def test_tensors_of_other_frameworks_come_and_go(tmp_path, name, words, kind):
    kept = dict(WEIGHTS)
    if name == "paddle":
        kept.pop("empty")  # upstream's writer cannot convert it to NumPy
    ours.numpy.save_file(kept, tmp_path / "w")
    program = FOLDER / "round_trip.py"
    assert output_of(program, name, words, tmp_path / "w", kind, tmp_path / "other").endswith("well")


def test_tensors_of_tensorflow_come_and_go(by_tensorflow):
    assert "round trip: well" in by_tensorflow


@pytest.mark.parametrize("framework", ["flax", "tf", "mlx"])
def test_frameworks_without_devices_refuse_one(path, framework):
    with pytest.raises(SafetensorError, match="'cuda'"):
        safe_open(path, framework, "cuda")


def test_a_type_that_a_framework_lacks_is_a_safetensor_error_with_its_name(tmp_path):
    code = PROGRAMS / "safetensors_frameworks/a_type_that_a_framework_lacks_is.py"
    write(tmp_path / "t", weight_file({"t": entry("F8_E4M3", [2], 0, 2)}, 2))
    assert "mlx cannot make a tensor of F8_E4M3 elements and shape (2,)" in output_of(code, tmp_path / "t")


# Bytes in memory


def mapped(data):
    found = mmap.mmap(-1, len(data))
    found[:] = data
    return found


KINDS = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "array.array": lambda data: array.array("B", data),
    "numpy": lambda data: np.frombuffer(data, "u1"),
    "numpy of words": lambda data: np.frombuffer(data, "<u8"),
    "part of more": lambda data: memoryview(b"before" + data + b"after")[6:-5],
    "mapped": mapped,
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_any_buffer_is_a_file(path, kind):
    with open(path, "rb") as file:
        data = file.read()
    if kind is KINDS["numpy of words"]:
        data = ours.numpy.save({"a": np.arange(3)})  # the length is a whole number of words
        assert len(data) % 8 == 0
    given = kind(data)
    arrays, tensors = ours.numpy.load(given), ours.torch.load(given)
    expected = safetensors.deserialize(data)
    assert sorted(arrays) == sorted(tensors) == sorted(name for name, _ in expected)
    for name, tensor in expected:
        assert arrays[name].tobytes() == bytes(tensor["data"])
        assert tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes() == bytes(tensor["data"])
        assert list(arrays[name].shape) == list(tensors[name].shape) == tensor["shape"]
        assert arrays[name].flags.writeable
    found = dict(ours.deserialize(given))
    assert {name: (t["shape"], t["dtype"], bytes(t["data"])) for name, t in found.items()} == {
        name: (t["shape"], t["dtype"], bytes(t["data"])) for name, t in expected
    }


def test_tensors_loaded_from_memory_have_their_own_memory(path):
    data = bytearray(ours.numpy.save({"a": np.arange(3)}))
    arrays = ours.numpy.load(data)
    data[:] = bytes(len(data))
    assert arrays["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("data", [b"", b"short", bytes(8), b"\xff" * 16, weight_file("{}", 3)])
def test_invalid_bytes_are_refused_with_upstreams_wording(data):
    with pytest.raises(SafetensorError, match=r"^Error while deserializing: "):
        ours.deserialize(data)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(data)


def test_bytes_in_memory_are_read_strictly_unless_asked(tmp_path):
    null = weight_file('{"__metadata__":null}')
    with pytest.raises(SafetensorError):
        ours.deserialize(null)
    assert ours.deserialize(null, strict=False) == []


# Types


@pytest.mark.parametrize(
    "options", [{}, {"mmap_mode": "shared"}, {"mmap_mode": "read"}, {"copy": True}], ids=str
)
def test_elements_of_four_bits_get_a_byte_each_in_numpy(tmp_path, options):
    content = weight_file({"t": entry("F4", [2, 4], 0, 4)}, b"\x21\x43\x65\x87")
    path = write(tmp_path / "t", content)
    expected = [[0.5, 1, 1.5, 2], [3, 4, 6, -0.0]]
    array = safe_open(path, "np", **options).get_tensor("t")
    assert array.dtype == ml_dtypes.float4_e2m1fn
    np.testing.assert_array_equal(array.astype("f4"), expected)
    if "copy" not in options:
        checkpoint = open_checkpoint(path, **options)
        np.testing.assert_array_equal(checkpoint["t"].astype("f4"), expected)
        np.testing.assert_array_equal(checkpoint.read("t").astype("f4"), expected)


@pytest.mark.parametrize("code", ["F6_E2M3", "F6_E3M2"])
def test_elements_of_six_bits_get_a_byte_each_in_numpy(tmp_path, code):
    numbers = np.random.default_rng(0).integers(0, 64, 64).astype("u1")
    bits = np.unpackbits(numbers[:, None], axis=1, bitorder="little")[:, :6]
    packed = np.packbits(bits.reshape(-1), bitorder="little").tobytes()
    path = write(tmp_path / "t", weight_file({"t": entry(code, [8, 8], 0, 48)}, packed))
    array = safe_open(path, "np").get_tensor("t")
    assert array.dtype.name == f"float6_{code[3:].lower()}fn"
    np.testing.assert_array_equal(array.view("u1"), numbers.reshape(8, 8))


def test_without_ml_dtypes_the_error_says_what_to_do_and_raw_gives_the_bytes(tmp_path):
    ours.numpy.save_file({"t": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)}, tmp_path / "t")
    code = PROGRAMS / "safetensors_frameworks/without_ml_dtypes_the_error_says_what.py"
    expected = np.arange(6).astype(ml_dtypes.bfloat16).tobytes().hex()
    assert output_of(code, tmp_path / "t") == f"uint8 (2, 6) {expected}"


@pytest.mark.parametrize("framework", ["np", "pt"])
@pytest.mark.parametrize("options", [{}, {"mmap_mode": "read"}, {"copy": True}], ids=str)
@pytest.mark.parametrize(("code", "torch_name", "dtype"), ELEMENT_TYPES, ids=str)
def test_raw_is_each_types_bytes(tmp_path, framework, options, code, torch_name, dtype):
    itemsize = np.dtype(dtype).itemsize
    data = bytes(range(1, 6 * itemsize + 1)) if code != "BOOL" else bytes([0, 1] * 3)
    header = {"t": entry(code, [2, 3], 0, len(data)), "s": entry(code, [], len(data), len(data) + itemsize)}
    path = write(tmp_path / "t", weight_file(header, data + data[:itemsize]))
    file = safe_open(path, framework, raw=True, **options)
    tensor, scalar = file.get_tensor("t"), file.get_tensor("s")
    assert str(tensor.dtype).removeprefix("torch.") == "uint8"
    assert (tuple(tensor.shape), tuple(scalar.shape)) == ((2, 3 * itemsize), (itemsize,))
    assert np.asarray(tensor).tobytes() == data
    assert LOADERS[framework](path, raw=True)["t"].shape == tensor.shape


LOADERS = {"np": ours.numpy.load_file, "pt": ours.torch.load_file}


@pytest.mark.parametrize("framework", ["np", "pt"])
@pytest.mark.parametrize(
    ("code", "shape", "nbytes", "raw"),
    [
        ("F4", [2, 4], 4, (2, 2)),
        ("F4", [2, 1], 1, (1,)),
        ("F6_E2M3", [2, 4], 6, (2, 3)),
        ("F6_E3M2", [2, 2], 3, (3,)),
    ],
)
def test_raw_of_elements_smaller_than_a_byte_is_packed(tmp_path, framework, code, shape, nbytes, raw):
    path = write(tmp_path / "t", weight_file({"t": entry(code, shape, 0, nbytes)}, bytes(range(nbytes))))
    tensor = safe_open(path, framework, raw=True).get_tensor("t")
    assert tuple(tensor.shape) == raw
    assert np.asarray(tensor).tobytes() == bytes(range(nbytes))


# Misaligned tensors


@pytest.mark.parametrize("remainder", range(8))
def test_align_says_what_becomes_of_a_misaligned_tensor(tmp_path, remainder):
    path = odd_file(tmp_path / "odd", remainder)
    offset = open_checkpoint(path).info("floats").offset
    copied = safe_open(path, "np").get_tensor("floats")
    viewed = safe_open(path, "np", align="view").get_tensor("floats")
    for floats in (copied, viewed):
        np.testing.assert_array_equal(floats, FLOATS)
        floats[0] = -1
    assert copied.flags.aligned
    assert viewed.flags.aligned == (offset % 4 == 0)
    assert place_in_file(viewed, path) is not None
    strict = safe_open(path, "np", align="error")
    if offset % 4:
        with pytest.raises(SafetensorError, match=f"tensor 'floats' at byte {offset}: .*align"):
            strict.get_tensor("floats")
    else:
        np.testing.assert_array_equal(strict.get_tensor("floats"), FLOATS)


def test_align_view_is_for_numpy_and_other_words_are_refused(path):
    with pytest.raises(ValueError, match="NumPy"):
        safe_open(path, "pt", align="view")
    with pytest.raises(ValueError, match="align"):
        safe_open(path, "np", align="pad")


# Changes in upstream's next release


def test_the_meta_of_a_tensor_is_what_the_header_says(path):
    with open(path, "rb") as file:
        data = file.read()
    start = 8 + int.from_bytes(data[:8], "little")
    with safe_open(path, "pt") as file:
        for name, array in WEIGHTS.items():
            meta = file.get_tensor_meta(name)
            begin, end = meta.data_offsets
            assert data[start + begin : start + end] == array.tobytes()
            assert meta.shape == list(array.shape)
        assert file.get_tensor_meta("half") == TensorMeta("BF16", [4], meta_offsets(file))
        with pytest.raises(SafetensorError, match="nobody"):
            file.get_tensor_meta("nobody")


def meta_offsets(file):
    return file.get_tensor_meta("half").data_offsets


def test_get_tensors_gives_all_in_the_order_of_the_data(path):
    with safe_open(path, "np") as file:
        tensors = file.get_tensors()
        assert list(tensors) == file.offset_keys()
        for name, array in tensors.items():
            np.testing.assert_array_equal(array, WEIGHTS[name], strict=True)


def test_format_errors_of_types_are_both_classes(tmp_path):
    assert issubclass(SafetensorError, FormatError)


# Keywords that upstream accepts


def test_no_device_is_the_cpu(path):
    for framework in ("np", "pt"):
        np.testing.assert_array_equal(
            safe_open(path, framework, None).get_tensor("vector"), WEIGHTS["vector"]
        )
    assert ours.torch.load_file(path, None)["matrix"].device.type == "cpu"


@pytest.mark.parametrize("options", [{}, {"backend": "pread"}, {"copy": True}], ids=str)
def test_torchs_default_device_does_not_matter(path, tmp_path, options):
    odd = odd_file(tmp_path / "odd", 1)
    with torch.device("meta"):
        tensors = ours.torch.load_file(path, **options)
        part = safe_open(path, "pt", **options).get_slice("matrix")[:, ::2]
        moved = ours.torch.load_file(odd, **options)
    assert {tensor.device.type for tensor in (*tensors.values(), part, *moved.values())} == {"cpu"}
    np.testing.assert_array_equal(part, WEIGHTS["matrix"][:, ::2])


def test_a_framework_that_is_not_a_string_is_a_type_error(path):
    for word in (None, 5):
        with pytest.raises(TypeError, match="framework"):
            safe_open(path, word)


@pytest.mark.parametrize(
    "options", [{"backend": "fread"}, {"backend": "pread", "mmap_mode": "shared"}], ids=str
)
def test_a_bad_backend_is_an_error_for_handlers_of_either_class(path, options):
    for kind in (ValueError, safetensors.SafetensorError):
        with pytest.raises(kind):
            safe_open(path, "np", **options)


def test_bytes_go_by_upstreams_name():
    content = ours.numpy.save({"a": np.arange(2)})
    assert ours.deserialize(bytes=content)[0][0] == "a"
    with pytest.raises(SafetensorError, match="too small"):
        ours.deserialize(np.zeros((0, 3)))


def test_loads_from_memory_can_be_lenient():
    content = weight_file('{"__metadata__":null,"a":["U8",[1],[0,1]]}', 1)
    for load in (ours.numpy.load, ours.torch.load):
        assert list(load(content, strict=False)) == ["a"]
        with pytest.raises(SafetensorError):
            load(content)


def test_helpers_of_upstreams_are_found_in_ours():
    assert ours.torch._SIZE is safetensors.torch._SIZE
    assert ours.numpy._is_little_endian is safetensors.numpy._is_little_endian
    assert ours.torch.serialize_file is ours.serialize_file
    with pytest.raises(AttributeError, match=r"pagestream\.safetensors\.torch.*nothing"):
        _ = ours.torch.nothing


def test_paddles_devices(path):
    code = PROGRAMS / "safetensors_frameworks/paddles_devices.py"
    assert output_of(code, path).endswith("well")


def test_four_bits_are_sliced_before_tensorflow_gets_them(by_tensorflow):
    assert "four bits: well" in by_tensorflow


# Indices that only torch accepts


LISTS = [
    [1, 0],
    [-1],
    np.s_[:, [0, 2]],
    np.s_[..., [3, 0, 0]],
    np.s_[1:, [1], ...],
    np.s_[[0, 2], 1:],
    np.s_[[0, 1], [2, 3]],
    np.s_[0, [1, 2]],
    np.s_[[2, 0], None],
    np.array([2, 1]),
    torch.tensor([1, 0]),
    torch.tensor(1),
    torch.tensor([True, False, True]),
    np.s_[:, torch.tensor([[0, 1], [2, 3]])],
]


@pytest.mark.parametrize("options", [{}, {"backend": "pread"}, {"copy": True}], ids=str)
@pytest.mark.parametrize("index", LISTS, ids=str)
def test_torch_takes_lists_and_tensors_as_upstream_does(path, index, options):
    theirs = safetensors.safe_open(path, "pt").get_slice("matrix")
    assert torch.equal(safe_open(path, "pt", **options).get_slice("matrix")[index], theirs[index])


@pytest.mark.parametrize(
    "index", [[3], [0, -4], np.s_[:, [4]], np.s_[:, :, [0]], torch.tensor([True, False])], ids=str
)
def test_lists_that_torch_refuses_are_slice_errors(path, index):
    with pytest.raises(SliceError):
        safe_open(path, "pt").get_slice("matrix")[index]


def test_numpy_takes_no_lists(path):
    with pytest.raises(SliceError, match="Non empty lists are not implemented"):
        safe_open(path, "np").get_slice("matrix")[[0, 1]]


@pytest.mark.parametrize("shape", [[0, 1 << 63, 1 << 63], [1] * 65])
@pytest.mark.parametrize("framework", ["np", "pt"])
def test_a_shape_that_a_framework_does_not_have_is_an_error_that_names_the_tensor(tmp_path, framework, shape):
    size = 4 if shape[0] else 0
    path = write(tmp_path / "t", weight_file({"odd": entry("F32", shape, 0, size)}, size))
    if framework == "pt" and shape[0]:
        assert safe_open(path, framework).get_tensor("odd").ndim == 65
        return
    named = re.escape(f"{path}: tensor 'odd'")
    with pytest.raises(SafetensorError, match=rf"{named}.*: .*shape|{named}.*: .*dimension"):
        safe_open(path, framework).get_tensor("odd")
    if framework == "np":
        with pytest.raises(ValueError, match=named):
            open_checkpoint(path)["odd"]
