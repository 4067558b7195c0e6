"""`copy`: tensors with their own memory, for programs that rewrite the files they have loaded."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch

import pagestream.safetensors as ours
import pagestream.safetensors.numpy
import pagestream.safetensors.torch  # noqa: F401 - as `ours.torch`
from pagestream.safetensors import install

from support.mappings import place_in_file
from support.process import PROGRAMS, output_of

ARRAY = np.arange(1 << 16, dtype="f4")

LOADERS = {
    "numpy": lambda path: safetensors.numpy.load_file(path)["a"],
    "torch": lambda path: safetensors.torch.load_file(path)["a"],
    "get_tensor": lambda path: safetensors.safe_open(path, "np").get_tensor("a"),
    "get_tensors": lambda path: safetensors.safe_open(path, "pt").get_tensors()["a"],
    "get_slice": lambda path: safetensors.safe_open(path, "np").get_slice("a")[:],
}
every_loader = pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)


@pytest.fixture
def path(tmp_path):
    """Returns a file with the tensor "a"."""
    ours.numpy.save_file({"a": ARRAY}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def rewrite(path):
    """Overwrites the content of a file in place."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.write(b"\xff" * size)


def cut(path):
    open(path, "wb").close()


@every_loader
@pytest.mark.parametrize("change", [rewrite, cut])
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_copies_stay_when_their_file_is_rewritten(path, load, change, by, monkeypatch):
    if by == "variable":
        monkeypatch.setenv("PAGESTREAM_COPY", "on")
    with install(copy=True if by == "argument" else None):
        tensor = load(path)
    change(path)
    np.testing.assert_array_equal(np.asarray(tensor), ARRAY)


@every_loader
def test_by_default_tensors_are_copies_where_upstream_promises_them(path, load):
    with install():
        tensor = load(path)
        assert (place_in_file(tensor, path) is None) == (load is LOADERS["numpy"])
    assert place_in_file(ours.numpy.load_file(path)["a"], path) is not None


@every_loader
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_views_on_request(path, load, by, monkeypatch):
    if by == "variable":
        monkeypatch.setenv("PAGESTREAM_COPY", "off")
    with install(copy=False if by == "argument" else None):
        assert place_in_file(load(path), path) is not None


def test_a_program_that_loads_and_rewrites_keeps_its_arrays(path):
    """Upstream behaves the same."""
    with install():
        arrays = safetensors.numpy.load_file(path)
        arrays["a"] *= 2
        with open(path, "r+b") as file:
            file.write(bytes(8))
        cut(path)
    np.testing.assert_array_equal(arrays["a"], ARRAY * 2)


@pytest.mark.parametrize("value", ["", "off"])
def test_an_empty_variable_is_none(path, value, monkeypatch):
    monkeypatch.setenv("PAGESTREAM_COPY", value)
    assert place_in_file(ours.numpy.load_file(path)["a"], path) is not None


def test_an_argument_of_the_call_wins_and_the_last_install_counts(path, monkeypatch):
    def is_copied(**options):
        found = [
            place_in_file(load(path, **options)["a"], path) is None
            for load in (ours.numpy.load_file, ours.torch.load_file)
        ]
        assert found[0] == found[1]
        return found[0]

    monkeypatch.setenv("PAGESTREAM_COPY", "on")
    assert is_copied()
    assert not is_copied(copy=False)
    with install(copy=False):
        assert not is_copied()
        assert is_copied(copy=True)
        with install():
            assert is_copied()
        assert not is_copied()


@pytest.mark.parametrize(
    "call",
    [
        lambda path: ours.safe_open(path, "np"),
        ours.numpy.load_file,
        ours.torch.load_file,
        lambda path: install(),
    ],
)
def test_a_wrong_variable_is_named(path, call, monkeypatch):
    monkeypatch.setenv("PAGESTREAM_COPY", "yes")
    with pytest.raises(ValueError, match="PAGESTREAM_COPY must be"):
        call(path)


def test_a_wrong_argument_is_refused(path):
    for call in (install, lambda copy: ours.safe_open(path, "np", copy=copy)):
        with pytest.raises(TypeError, match="copy"):
            call(copy="yes")


@pytest.mark.frameworks
def test_jax_has_copied_when_a_call_returns(path):
    """jax copies in its own threads, while the program may already rewrite the file."""
    assert output_of(PROGRAMS / "safetensors_copies/jax_has_copied.py", path).endswith("ready")


@pytest.mark.frameworks
@pytest.mark.parametrize("framework", ["jax", "tensorflow", "mlx", "paddle"])
def test_other_frameworks_copy(path, framework):
    program = PROGRAMS / "safetensors_copies/rewritten_after_the_load.py"
    assert output_of(program, path, framework).splitlines()[-1] == "True"
