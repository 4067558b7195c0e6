"""`open_checkpoint`: a file as a mapping of read-only arrays that share the file's pages."""

from __future__ import annotations

import errno
import gc
import os
import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from pagestream import TensorInfo, open_checkpoint
from pagestream.errors import FileChangedError, MappedReadError, SafetensorError

from support.mappings import mappings_of, place_in_file
from support.weight_files import ELEMENT_TYPES, FLOATS, entry, odd_file, weight_file, write

MODES = ["auto", "shared", "private", "read"]
every_mode = pytest.mark.parametrize("mode", MODES)

WEIGHTS = {
    "matrix": np.arange(2048 * 3, dtype="<f4").reshape(2048, 3),
    "vector": np.arange(5, dtype="<i8"),
    "scalar": np.array(1.5, "<f8"),
    "empty": np.zeros((2, 0, 3), "<u2"),
    "flags": np.array([True, False, True]),
}


@pytest.fixture
def path(tmp_path):
    """Returns a file of `WEIGHTS`."""
    safetensors.numpy.save_file(WEIGHTS, tmp_path / "weights.safetensors", {"by": "the test"})
    return str(tmp_path / "weights.safetensors")


def test_it_is_a_mapping_in_the_order_of_the_file(tmp_path):
    header = {"z": entry("U8", [1], 2, 3), "a": entry("U8", [1], 1, 2), "m": entry("U8", [1], 0, 1)}
    weights = open_checkpoint(write(tmp_path / "w.safetensors", weight_file(header, b"\x0a\x0b\x0c")))
    assert isinstance(weights, Mapping)
    assert (list(weights), len(weights)) == (["m", "a", "z"], 3)
    assert [(name, array.item()) for name, array in weights.items()] == [("m", 10), ("a", 11), ("z", 12)]
    assert "a" in weights
    assert "b" not in weights
    assert 5 not in weights
    assert weights.get("b") is None


@pytest.mark.parametrize("access", ["__getitem__", "read", "info"])
@pytest.mark.parametrize("name", ["", "matri", "matrix ", "MATRIX"])
def test_a_name_that_is_not_there_is_a_key_error(path, access, name):
    with pytest.raises(KeyError) as caught:
        getattr(open_checkpoint(path), access)(name)
    assert caught.value.args == (name,)
    first, *closest = caught.value.__notes__
    assert first == f"none of the {len(WEIGHTS)} tensors in {path} has this name; keys() lists them"
    assert all(each.startswith("the closest names are ") for each in closest)


@pytest.mark.parametrize("access", ["__getitem__", "read", "info", "stream"])
def test_a_name_with_a_typing_error_gets_the_closest_names(tmp_path, access):
    names = [
        "lm_head.weight",
        *(f"layers.{each}.{part}.weight" for each in range(300) for part in ("up", "down")),
    ]
    safetensors.numpy.save_file({name: np.zeros(1) for name in names}, tmp_path / "w.safetensors")
    with open_checkpoint(tmp_path / "w.safetensors") as weights:
        for wrong, right in (
            ("lm_haed.weight", "lm_head.weight"),
            ("layers.217.up.wieght", "layers.217.up.weight"),
            ("layers.300.up.weight", "layers.0.up.weight"),
        ):
            with pytest.raises(KeyError) as caught:
                getattr(weights, access)([wrong] if access == "stream" else wrong)
            assert caught.value.__notes__[-1].startswith(f"the closest names are {right!r}")
        with pytest.raises(KeyError) as caught:
            weights["?"]
        assert len(caught.value.__notes__) == 1


def test_getting_a_missing_name_does_not_search_for_others(path, monkeypatch):
    monkeypatch.setattr("pagestream.weights.names.closest", None)
    weights = open_checkpoint(path)
    assert weights.get("matri") is None
    assert weights.get("matri", 3) == 3
    assert weights.get("matrix") is not None


@every_mode
def test_arrays_are_read_only_and_equal_to_what_was_saved(path, mode):
    weights = open_checkpoint(path, mmap_mode=mode)
    assert sorted(weights) == sorted(WEIGHTS)
    for name, array in weights.items():
        np.testing.assert_array_equal(array, WEIGHTS[name], strict=True)
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.parametrize(("mode", "permissions"), [("auto", "rw-p"), ("shared", "r--s"), ("private", "rw-p")])
def test_arrays_lie_inside_the_mapping_where_the_header_says(path, mode, permissions):
    weights = open_checkpoint(path, mmap_mode=mode)
    for name in ["matrix", "vector", "scalar", "flags"]:
        assert place_in_file(weights[name], path) == (weights.info(name).offset, permissions)
    assert len(mappings_of(path)) == (1 if mode == "shared" else 2)


def test_nothing_is_mapped_in_read_mode(path):
    weights = open_checkpoint(path, mmap_mode="read")
    array = weights["matrix"]
    assert mappings_of(path) == []
    assert not np.shares_memory(array, weights["matrix"])


def test_two_arrays_of_a_name_are_the_same_memory(path):
    weights = open_checkpoint(path)
    assert np.shares_memory(weights["matrix"], weights["matrix"])


def test_an_array_outlives_its_checkpoint_and_then_lets_the_mapping_go(path):
    weights = open_checkpoint(path)
    array = weights["matrix"]
    weights.close()
    del weights
    gc.collect()
    np.testing.assert_array_equal(array, WEIGHTS["matrix"])
    assert place_in_file(array, path)
    del array
    gc.collect()
    assert mappings_of(path) == []


def test_a_part_of_an_array_keeps_the_mapping_too(path):
    part = open_checkpoint(path)["matrix"][5:7, 1]
    gc.collect()
    np.testing.assert_array_equal(part, WEIGHTS["matrix"][5:7, 1])
    assert place_in_file(part[:1], path)


def test_a_closed_checkpoint_refuses_and_says_so(path):
    with open_checkpoint(path) as weights:
        pass
    for ask in (weights.__getitem__, weights.read):
        with pytest.raises(ValueError, match="closed"):
            ask("matrix")
    weights.close()
    assert len(weights) == len(WEIGHTS)


@every_mode
def test_read_gives_memory_of_the_callers_own(path, mode):
    weights = open_checkpoint(path, mmap_mode=mode)
    for name, expected in WEIGHTS.items():
        array = weights.read(name)
        np.testing.assert_array_equal(array, expected, strict=True)
        assert array.flags.writeable
        assert expected.size == 0 or place_in_file(array, path) is None
    weights.read("vector")[:] = -1
    np.testing.assert_array_equal(weights["vector"], WEIGHTS["vector"])


@every_mode
def test_read_fills_and_returns_out(path, mode):
    weights = open_checkpoint(path, mmap_mode=mode)
    for name, expected in WEIGHTS.items():
        out = np.empty_like(expected)
        assert weights.read(name, out=out) is out
        np.testing.assert_array_equal(out, expected, strict=True)


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((3, 2048), "<f4"),
        np.zeros(2048 * 3, "<f4"),
        np.zeros((2048, 3, 1), "<f4"),
        np.zeros((2047, 3), "<f4"),
        np.zeros((2048, 3), "<f8"),
        np.zeros((2048, 3), "<i4"),
        np.zeros((2048, 3), ">f4"),
        np.zeros((2048, 3), "<f4", order="F"),
        np.zeros((2048, 6), "<f4")[:, ::2],
        np.zeros((2048, 3), "<f4")[::-1],
    ],
    ids=lambda out: f"{out.shape}{out.dtype.str}{out.strides}",
)
def test_an_out_that_does_not_fit_is_refused_and_not_touched(path, out):
    with pytest.raises(ValueError, match="out is"):
        open_checkpoint(path).read("matrix", out=out)
    assert not out.any()


def test_an_out_that_is_read_only_is_refused(path):
    out = np.zeros((2048, 3), "<f4")
    out.flags.writeable = False
    with pytest.raises((TypeError, ValueError), match="read-only"):
        open_checkpoint(path).read("matrix", out=out)
    assert not out.any()


def test_info_metadata_and_files_say_what_the_header_says(path, monkeypatch):
    monkeypatch.chdir(os.path.dirname(path))
    weights = open_checkpoint("weights.safetensors")
    with open(path, "rb") as file:
        header_end = 8 + int.from_bytes(file.read(8), "little")
    info = weights.info("matrix")
    assert weights.info(next(iter(weights))).offset == header_end
    assert info == TensorInfo("matrix", "F32", (2048, 3), 2048 * 12, "weights.safetensors", info.offset)
    assert weights.info("empty").nbytes == 0
    assert weights.info("scalar").shape == ()
    assert weights.metadata == {"by": "the test"}
    assert weights.files == ("weights.safetensors",)
    assert weights.warnings == []


def test_metadata_is_none_where_the_header_has_none(tmp_path):
    assert open_checkpoint(write(tmp_path / "none", weight_file("{}"))).metadata is None
    empty = write(tmp_path / "empty", weight_file('{"__metadata__":{}}'))
    assert open_checkpoint(empty).metadata == {}


@pytest.mark.parametrize(
    ("asked", "found"), [("auto", "shared"), ("shared", "shared"), ("private", "private"), ("read", "read")]
)
def test_mode_is_what_is_in_use_and_reason_none_for_the_first_choice(path, asked, found):
    weights = open_checkpoint(path, mmap_mode=asked)
    assert (weights.mode, weights.reason) == (found, None)


def test_an_unknown_mode_is_refused(path):
    with pytest.raises(ValueError, match="sideways"):
        open_checkpoint(path, mmap_mode="sideways")


def test_the_environment_chooses_the_mode_and_an_argument_wins(path, monkeypatch):
    monkeypatch.setenv("PAGESTREAM_MMAP_MODE", "read")
    assert open_checkpoint(path).mode == "read"
    assert open_checkpoint(path, mmap_mode="private").mode == "private"
    monkeypatch.setenv("PAGESTREAM_MMAP_MODE", "fast")
    with pytest.raises(ValueError, match="PAGESTREAM_MMAP_MODE"):
        open_checkpoint(path)


def test_unknown_fields_are_warned_of_by_name(tmp_path):
    header = {"t": {**entry("U8", [1], 0, 1), "colour": "red"}}
    weights = open_checkpoint(write(tmp_path / "w", weight_file(header, 1)))
    assert ["colour" in warning and '"t"' in warning for warning in weights.warnings] == [True]


@pytest.mark.parametrize("mode", ["auto", "read"])
@pytest.mark.parametrize(("code", "torch_name", "dtype"), ELEMENT_TYPES, ids=str)
def test_values_of_every_type_are_those_that_torch_wrote(tmp_path, mode, code, torch_name, dtype):
    wide = torch.float64 if code != "C64" else torch.complex128
    written = torch.tensor([[0.0, 1.0, 2.0], [0.5, 4.0, 8.0]], dtype=wide).to(getattr(torch, torch_name))
    safetensors.torch.save_file({"pad": torch.zeros(1, dtype=torch.uint8), "t": written}, tmp_path / "t")
    weights = open_checkpoint(tmp_path / "t", mmap_mode=mode)
    array = weights["t"]
    assert weights.info("t").dtype == code
    assert (array.dtype, array.shape) == (np.dtype(dtype), (2, 3))
    assert array.tobytes() == written.view(torch.uint8).numpy().tobytes()
    values = array.astype(np.complex128 if code == "C64" else np.float64)
    np.testing.assert_array_equal(values, written.to(wide).numpy())
    np.testing.assert_array_equal(weights.read("t"), array)


@every_mode
@pytest.mark.parametrize("remainder", range(8))
def test_a_tensor_comes_as_an_aligned_array_wherever_it_lies(tmp_path, remainder, mode):
    weights = open_checkpoint(odd_file(tmp_path / "odd", remainder), mmap_mode=mode)
    assert weights.info("floats").offset % 8 == (remainder + 1) % 8
    array = weights["floats"]
    assert array.flags.aligned
    assert not array.flags.writeable
    np.testing.assert_array_equal(array, FLOATS, strict=True)
    np.testing.assert_array_equal(weights.read("floats"), FLOATS, strict=True)


def test_only_what_is_misaligned_is_copied(tmp_path):
    path = odd_file(tmp_path / "odd")
    weights = open_checkpoint(path)
    assert place_in_file(weights["byte"], path) is not None
    assert place_in_file(weights["floats"], path) is None


@pytest.mark.parametrize("mode", MODES)
def test_a_file_without_tensors_is_an_empty_mapping(tmp_path, mode):
    weights = open_checkpoint(write(tmp_path / "none", weight_file("{}")), mmap_mode=mode)
    assert dict(weights) == {}


@pytest.mark.parametrize("how", ["str", "bytes", "path"])
def test_every_kind_of_path_opens(path, tmp_path, how):
    given = {"str": path, "bytes": os.fsencode(path), "path": tmp_path / "weights.safetensors"}[how]
    assert open_checkpoint(given).files == (path,)


def test_a_path_that_is_not_utf8_opens(path, tmp_path):
    odd = os.fsencode(tmp_path) + b"/\xff\xfe.safetensors"
    os.rename(path, odd)
    weights = open_checkpoint(odd)
    assert weights.files == (os.fsdecode(odd),)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(weights))["vector"], WEIGHTS["vector"])


@every_mode
def test_a_pickle_ships_no_bytes_and_opens_the_file_again(path, mode, monkeypatch):
    monkeypatch.chdir(os.path.dirname(path))
    weights = open_checkpoint("weights.safetensors", mmap_mode=mode)
    shipped = pickle.dumps(weights)
    assert len(shipped) < 400 + len(path)
    monkeypatch.chdir("/")
    again = pickle.loads(shipped)
    assert again.mode == weights.mode
    np.testing.assert_array_equal(again["matrix"], WEIGHTS["matrix"])


def test_a_pickle_keeps_strict(tmp_path):
    null = write(tmp_path / "null", weight_file('{"__metadata__":null}'))
    assert len(pickle.loads(pickle.dumps(open_checkpoint(null, strict=False)))) == 0


def test_a_pickle_of_a_file_that_is_gone_says_which(path):
    shipped = pickle.dumps(open_checkpoint(path))
    os.unlink(path)
    with pytest.raises(FileNotFoundError) as caught:
        pickle.loads(shipped)
    assert caught.value.filename == path


def test_eight_threads_read_the_same_checkpoint(path):
    weights = open_checkpoint(path)

    def look(number):
        for _ in range(50):
            name = list(WEIGHTS)[number % len(WEIGHTS)]
            np.testing.assert_array_equal(weights[name], WEIGHTS[name])
            np.testing.assert_array_equal(weights.read(name), WEIGHTS[name])
        return number

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(look, range(8))) == list(range(8))


def test_closing_under_eight_threads_raises_exceptions_only(path):
    weights = open_checkpoint(path)

    def look(number):
        seen = 0
        try:
            while True:
                assert weights["matrix"][2047, 2] == WEIGHTS["matrix"][2047, 2]
                seen += 1
                if number == 0 and seen == 20:
                    weights.close()
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(look, range(8))) == {f"{path}: the file is closed"}


@pytest.mark.parametrize(
    ("name", "error", "number"),
    [
        ("missing", FileNotFoundError, errno.ENOENT),
        ("weights.safetensors/below", NotADirectoryError, errno.ENOTDIR),
    ],
)
def test_what_cannot_be_opened_has_errno_and_filename(path, tmp_path, name, error, number):
    asked = os.path.join(tmp_path, name)
    with pytest.raises(error) as caught:
        open_checkpoint(asked)
    assert (caught.value.errno, caught.value.filename) == (number, asked)


def test_another_format_is_a_safetensor_error_with_the_path(tmp_path):
    np.save(tmp_path / "array.npy", np.arange(100))
    with pytest.raises(SafetensorError, match=r"array\.npy.*header too large"):
        open_checkpoint(tmp_path / "array.npy")


@every_mode
def test_a_file_that_was_cut_is_an_error_of_read_with_path_and_offset(path, mode):
    weights = open_checkpoint(path, mmap_mode=mode)
    info = weights.info("matrix")
    os.truncate(path, info.offset + 4096)
    with pytest.raises(MappedReadError, match="truncated") as caught:
        weights.read("matrix")
    assert caught.value.filename == path
    assert info.offset <= caught.value.offset < info.offset + info.nbytes
    with pytest.raises(FileChangedError, match="truncated"):
        weights.check()


def test_check_tells_a_replaced_file_whose_arrays_stay_valid(path):
    weights = open_checkpoint(path)
    array = weights["vector"]
    weights.check()
    safetensors.numpy.save_file({"vector": np.zeros(5, "<i8")}, path)
    with pytest.raises(FileChangedError) as caught:
        weights.check()
    assert caught.value.filename == path
    np.testing.assert_array_equal(array, WEIGHTS["vector"])


def test_tensor_infos_compare_hash_print_and_pickle(path):
    weights = open_checkpoint(path)
    info = weights.info("matrix")
    assert info == weights.info("matrix") != weights.info(next(name for name in weights if name != "matrix"))
    assert hash(info) == hash(weights.info("matrix"))
    assert pickle.loads(pickle.dumps(info)) == info
    assert repr(info).startswith(
        "TensorInfo(name='matrix', dtype='F32', shape=(2048, 3), nbytes=24576, path="
    )
    match info:
        case TensorInfo("matrix", dtype, shape):
            assert (dtype, shape) == ("F32", (2048, 3))
        case _:
            pytest.fail("no match")
    with pytest.raises(AttributeError):
        info.name = "another"  # type: ignore[misc]


def test_a_checkpoint_says_whether_it_is_closed_and_prints_the_same_each_time(path):
    with open_checkpoint(path) as weights:
        text = repr(weights)
        assert not weights.closed
        assert text == repr(open_checkpoint(path))
    assert weights.closed
    assert repr(weights) == text
