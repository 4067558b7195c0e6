"""`install` puts pagestream in upstream's place, and `uninstall` restores upstream."""

from __future__ import annotations

import importlib
import sys
import textwrap
import types

import pytest
import safetensors
import safetensors.torch

import pagestream.safetensors
import pagestream.safetensors.torch
from pagestream.safetensors import _install, install, uninstall

from support.process import PROGRAMS, output_of

UPSTREAM = safetensors.safe_open


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "safetensors"}
    yield
    after = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "safetensors"}
    # New modules may have been imported meanwhile. The earlier ones are back.
    assert {name: after.get(name) for name in before} == before
    with pytest.raises(RuntimeError, match="not installed"):
        uninstall()


def test_imports_get_ours_while_it_is_installed():
    with install():
        import safetensors as again
        import safetensors.numpy
        from safetensors.torch import load_file

        assert again is pagestream.safetensors
        assert safetensors.numpy is pagestream.safetensors.numpy
        assert load_file is pagestream.safetensors.torch.load_file
        assert importlib.import_module("safetensors._safetensors_rust") is pagestream.safetensors
    import safetensors as again

    assert again.safe_open is UPSTREAM


def test_names_in_modules_that_were_imported_before_are_ours_meanwhile():
    assert (safe_open_of_upstream, globals()["safetensors"].safe_open) == (UPSTREAM, UPSTREAM)
    with install():
        assert globals()["safe_open_of_upstream"] is pagestream.safetensors.safe_open
        assert globals()["safetensors"] is pagestream.safetensors
        assert globals()["load_file_of_upstream"] is pagestream.safetensors.torch.load_file
    assert globals()["safe_open_of_upstream"] is UPSTREAM
    assert globals()["safetensors"].safe_open is UPSTREAM


safe_open_of_upstream = safetensors.safe_open
load_file_of_upstream = safetensors.torch.load_file


def test_handlers_of_upstreams_error_stay_and_catch_ours(tmp_path):
    theirs = safetensors.SafetensorError
    path = tmp_path / "bad"
    path.write_bytes(b"short")
    with install():
        assert globals()["SafetensorError"] is theirs
        with pytest.raises(theirs):
            globals()["safe_open_of_upstream"](path, "np")


SafetensorError = safetensors.SafetensorError


def test_calls_nest():
    with install(), install():
        uninstall()
        assert sys.modules["safetensors"] is pagestream.safetensors
        install()
    assert sys.modules["safetensors"].safe_open is UPSTREAM


def test_an_exception_in_the_block_uninstalls():
    with pytest.raises(ZeroDivisionError), install():
        _ = 1 / 0
    assert sys.modules["safetensors"].safe_open is UPSTREAM


def test_a_part_that_nobody_has_is_a_module_not_found_error_with_its_name():
    with install(), pytest.raises(ModuleNotFoundError, match=r"safetensors\.nothing") as caught:
        importlib.import_module("safetensors.nothing")
    assert caught.value.name == "safetensors.nothing"


def test_a_part_that_upstream_has_and_ours_has_not_is_away_meanwhile(monkeypatch):
    part = types.ModuleType("safetensors.of_a_later_version")
    monkeypatch.setitem(sys.modules, part.__name__, part)
    with install(), pytest.raises(ModuleNotFoundError, match="of_a_later_version"):
        importlib.import_module(part.__name__)
    assert importlib.import_module(part.__name__) is part


def test_foreign_functions_in_upstreams_modules_stay_unchanged(monkeypatch):
    """A function of another library, under a name that pagestream also has."""
    dedent = textwrap.dedent
    monkeypatch.setattr(safetensors.torch, "load_file", dedent)
    with install():
        assert textwrap.dedent is dedent
        assert safetensors.torch.load_file is pagestream.safetensors.torch.load_file


def test_specs_stay_those_of_our_own_names():
    with install():
        import safetensors.numpy

        assert safetensors.numpy.__spec__.name == "pagestream.safetensors.numpy"
        assert safetensors.numpy.__name__ == "pagestream.safetensors.numpy"
        assert safetensors.numpy.__spec__.loader is not sys.meta_path[0]


def test_torchs_part_first_imported_while_installed_can_write_too(tmp_path):
    """At that point, upstream's torch module is not imported yet, and is not in `sys.modules`."""
    code = PROGRAMS / "safetensors_install/whoever_imports_torchs_part_first_while_installed.py"
    assert output_of(code, tmp_path / "a") == "well"


def test_reading_needs_no_upstream_code(tmp_path):
    """safetensors cannot be imported in this process."""
    pagestream.safetensors.numpy.save_file({"a": pagestream_array()}, tmp_path / "a")
    code = PROGRAMS / "safetensors_install/reading_needs_nothing_of_upstreams.py"
    assert output_of(code, tmp_path / "a") == "well"


def pagestream_array():
    import numpy as np

    return np.arange(3)


def test_eight_threads_import_while_it_comes_and_goes():
    code = PROGRAMS / "safetensors_install/eight_threads_import.py"
    assert output_of(code) == "[]"


def test_modules_may_be_imported_in_the_middle_of_install(monkeypatch):
    """Another thread's import adds to `sys.modules` while install and uninstall loop over it."""
    is_upstreams, added = _install._is_upstreams, []

    def import_another(name):
        added.append(f"imported_meanwhile_{len(added)}")
        monkeypatch.setitem(sys.modules, added[-1], types.ModuleType(added[-1]))
        return is_upstreams(name)

    monkeypatch.setattr(_install, "_is_upstreams", import_another)
    with install():
        assert added
        before = len(added)
    assert len(added) > before


def test_the_last_install_decides_the_strictness_of_calls_without_it(tmp_path):
    """Third-party code has no other way to be lenient."""
    entry = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    header = f'{{"x":{entry},"x":{entry}}}'.encode()
    path = tmp_path / "repeated.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\7")

    def accepted(**strict):
        import safetensors.numpy

        try:
            found = (
                safetensors.numpy.load_file(path, **strict),
                safetensors.numpy.load(path.read_bytes(), **strict),
            )
        except pagestream.safetensors.SafetensorError:
            return False
        assert [part["x"].tolist() for part in found] == [[7], [7]]
        return True

    assert accepted()  # upstream accepts it
    with install():
        assert not accepted()
        assert accepted(strict=False)
        with install(strict=False):
            assert accepted()
            assert not accepted(strict=True)
            with pytest.raises(TypeError, match="strict"):
                install(strict=None)
        assert not accepted()
        lenient, strict = install(strict=False), install(strict=True)
        lenient.__exit__()
        assert not accepted()
        strict.__exit__()


def test_ours_put_under_upstreams_name_by_hand_works(tmp_path):
    """pagestream delegates to upstream's package for its helpers, its writers and its version."""
    code = PROGRAMS / "safetensors_install/ours_put_under_upstreams_name_by_hand.py"
    assert output_of(code, tmp_path / "a") == safetensors.__version__
