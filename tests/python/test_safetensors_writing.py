"""Writing: upstream's code, with checks where it would store other values than it was given."""

from __future__ import annotations

import os
import stat

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
from pagestream.safetensors import SafetensorError

from support.process import PROGRAMS, output_of

BASE = np.arange(24, dtype="f4").reshape(4, 6)
NOT_CONTIGUOUS = {
    "transposed": BASE.T,
    "fortran": np.asfortranarray(BASE),
    "strided": BASE[:, ::2],
    "reversed": BASE[::-1],
    "broadcast": np.broadcast_to(BASE[0], (3, 6)),
    "big endian": BASE.astype(">f4").T,
    "scalar": np.array(1.5),
    "empty": BASE[:0].T,
    "bfloat16": BASE.astype(ml_dtypes.bfloat16).T,
}


@pytest.mark.parametrize("name", NOT_CONTIGUOUS)
def test_arrays_are_stored_as_they_are_whatever_their_strides(tmp_path, name):
    array = NOT_CONTIGUOUS[name]
    ours.numpy.save_file({"a": array}, tmp_path / "a")
    for stored in (
        ours.numpy.load_file(tmp_path / "a")["a"],
        ours.numpy.load(ours.numpy.save({"a": array}))["a"],
        safetensors.numpy.load_file(tmp_path / "a")["a"],
    ):
        assert stored.shape == array.shape
        assert stored.dtype == array.dtype.newbyteorder("<")
        np.testing.assert_array_equal(stored, array)


def test_the_caller_keeps_its_dict_and_its_arrays():
    array = BASE.T
    given = {"a": array}
    ours.numpy.save(given, {"k": "v"})
    assert given == {"a": array}
    assert given["a"] is array


WRITERS = {
    "numpy": lambda path: ours.numpy.save_file({"a": BASE}, path),
    "torch": lambda path: ours.torch.save_file({"a": torch.zeros(3)}, path),
    "model": lambda path: ours.torch.save_model(torch.nn.Linear(2, 1), path),
    "specs": lambda path: ours.serialize_file(specs(), path),
}
every_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


def specs(name="a"):
    return {
        name: ours.TensorSpec(
            dtype="float32", shape=BASE.shape, data_ptr=BASE.ctypes.data, data_len=BASE.nbytes
        )
    }


@every_writer
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664), (0, 0o666)])
def test_a_new_files_mode_follows_the_umask(tmp_path, write, umask, mode):
    before = os.umask(umask)
    try:
        write(tmp_path / "new")
    finally:
        assert os.umask(before) == umask, "the umask was changed"
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == mode


@every_writer
def test_an_old_files_mode_stays(tmp_path, write):
    write(tmp_path / "old")
    os.chmod(tmp_path / "old", 0o640)
    write(tmp_path / "old")
    assert stat.S_IMODE(os.stat(tmp_path / "old").st_mode) == 0o640


@every_writer
def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path, write):
    (tmp_path / "store").mkdir()
    write(tmp_path / "store" / "blob")
    before = os.stat(tmp_path / "store" / "blob").st_ino
    os.symlink("store/blob", tmp_path / "link")
    write(tmp_path / "link")
    assert os.readlink(tmp_path / "link") == "store/blob"
    assert os.stat(tmp_path / "store" / "blob").st_ino != before
    assert len(ours.safe_open(tmp_path / "store" / "blob", "np").keys()) > 0


@every_writer
def test_a_file_that_is_mapped_and_saved_again_keeps_what_was_loaded(tmp_path, write):
    ours.numpy.save_file({"a": BASE}, tmp_path / "a")
    loaded = ours.numpy.load_file(tmp_path / "a")["a"]
    write(tmp_path / "a")
    np.testing.assert_array_equal(loaded, BASE)


RESERVED = {
    "numpy save": lambda path: ours.numpy.save({"__metadata__": BASE}),
    "numpy save_file": lambda path: ours.numpy.save_file({"__metadata__": BASE}, path),
    "torch save": lambda path: ours.torch.save({"__metadata__": torch.zeros(1)}),
    "torch save_file": lambda path: ours.torch.save_file({"__metadata__": torch.zeros(1)}, path),
    "model": lambda path: ours.torch.save_model(reserved_model(), path),
    "serialize": lambda path: ours.serialize(specs("__metadata__")),
    "serialize_file": lambda path: ours.serialize_file(specs("__metadata__"), path),
}


def reserved_model():
    model = torch.nn.Module()
    model.register_parameter("__metadata__", torch.nn.Parameter(torch.zeros(1)))
    return model


@pytest.mark.parametrize("write", RESERVED.values(), ids=RESERVED)
def test_the_name_that_nobody_could_read_is_refused_and_nothing_is_written(tmp_path, write):
    with pytest.raises(SafetensorError, match="__metadata__"):
        write(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda path: ours.numpy.save_file({"a": np.zeros(3, "M8[s]")}, path),
        lambda path: ours.numpy.save_file({"a": BASE}, path / "no" / "folder"),
        lambda path: ours.TensorSpec(dtype="nonsense", shape=[1], data_ptr=0, data_len=0),
        lambda path: ours.numpy.save({"a": np.zeros(3, "U5")}),
    ],
)
def test_errors_of_upstreams_code_are_of_our_class(tmp_path, write):
    with pytest.raises(SafetensorError) as caught:
        write(tmp_path)
    assert isinstance(caught.value, safetensors.SafetensorError)


def test_a_spec_of_ours_and_one_of_upstreams_are_written_the_same():
    spec = specs()["a"]
    assert isinstance(spec, ours.TensorSpec)
    assert not isinstance(BASE, ours.TensorSpec)
    fields = {name: getattr(spec, name) for name in ("shape", "data_ptr", "data_len")}
    assert fields["shape"] == list(BASE.shape)
    assert fields["data_ptr"] == BASE.ctypes.data
    theirs = safetensors.TensorSpec(dtype="float32", **fields)
    assert spec.dtype == theirs.dtype
    written = safetensors.serialize({"a": theirs})
    assert ours.serialize({"a": spec}) == ours.serialize({"a": theirs}) == written


def test_models_that_share_tensors_come_back(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(3, 3)
            self.second = torch.nn.Linear(3, 3)
            self.second.weight = self.first.weight

    saved, loaded = Tied(), Tied()
    metadata = {"k": "v"}
    ours.torch.save_model(saved, tmp_path / "m", metadata)
    assert metadata == {"k": "v"}, "the caller's dict stays as it is"
    assert ours.safe_open(tmp_path / "m", "pt").metadata() == {"k": "v", "second.weight": "first.weight"}
    assert ours.torch.load_model(loaded, tmp_path / "m") == (set(), [])
    assert loaded.second.weight is loaded.first.weight
    for name, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


@pytest.mark.parametrize("load_model", [ours.torch.load_model, safetensors.torch.load_model])
def test_names_that_do_not_fit_a_model_are_those_that_upstream_lists(tmp_path, load_model):
    ours.torch.save_file({"weight": torch.zeros(1, 2), "more": torch.zeros(1)}, tmp_path / "m")
    expected = (
        "Error(s) in loading state_dict for Linear:\n"
        '    Missing key(s) in state_dict: "bias"\n'
        '    Unexpected key(s) in state_dict: "more"'
    )
    with pytest.raises(RuntimeError) as caught:
        load_model(torch.nn.Linear(2, 1), tmp_path / "m")
    assert str(caught.value) == expected
    missing, unexpected = load_model(torch.nn.Linear(2, 1), tmp_path / "m", strict=False)
    assert (set(missing), list(unexpected)) == ({"bias"}, ["more"])


def test_writing_imports_no_torch(tmp_path):
    code = PROGRAMS / "safetensors_writing/writing_imports_no_torch.py"
    assert output_of(code, tmp_path / "a") == "[0 1 2] False"


@every_writer
def test_files_that_are_not_regular_are_left_alone(tmp_path, write):
    os.mkfifo(tmp_path / "fifo")
    os.symlink("loop", tmp_path / "loop")
    with pytest.raises(SafetensorError, match="no regular file"):
        write(tmp_path / "fifo")
    with pytest.raises(OSError, match="loop"):
        write(tmp_path / "loop")
    assert stat.S_ISFIFO(os.stat(tmp_path / "fifo").st_mode)
    assert os.readlink(tmp_path / "loop") == "loop"


def test_children_forked_while_threads_write_can_write():
    """A lock that a thread of the parent holds does not block the child."""
    code = PROGRAMS / "safetensors_writing/children_that_are_forked_while_threads_write.py"
    assert output_of(code) == "written"
