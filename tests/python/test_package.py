"""The package itself: names are imported on first use, and there are no other names."""

import ast
import importlib
import inspect
import pickle
import sys
import typing
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pytest
from safetensors.numpy import save_file

import pagestream

from support.process import output_of


def imports_for_type_checkers():
    """Returns the module of each name that type checkers see."""
    tree = ast.parse(Path(pagestream.__file__).read_text())
    blocks = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {alias.name: line.module for block in blocks for line in block.body for alias in line.names}


def test_type_checkers_and_programs_find_each_name_in_the_same_module():
    homes = imports_for_type_checkers()
    modules = {name for name, home in homes.items() if home == "pagestream"}
    assert modules == {"safetensors", "torch"}
    assert {*homes, "errors", "__version__"} - modules == set(pagestream.__all__)
    for name in homes.keys() - modules:
        assert getattr(pagestream, name) is getattr(importlib.import_module(homes[name]), name)


@pytest.mark.frameworks
def test_annotations_of_public_functions_are_evaluated():
    """pydantic evaluates strings in the module that a function names, which is the public one."""
    from pydantic import validate_call

    functions = [
        getattr(module, name)
        for module in (pagestream, pagestream.torch)
        for name in module.__all__
        if isinstance(getattr(module, name), FunctionType)
    ]
    assert len(functions) > 5
    for function in functions:
        assert [hint for hint in function.__annotations__.values() if isinstance(hint, str)] == []
    validate_call(pagestream.open_checkpoint)


PUBLIC = ["pagestream", "pagestream.errors", "pagestream.safetensors", "pagestream.torch"]


@pytest.mark.frameworks
@pytest.mark.parametrize("name", PUBLIC)
def test_dir_lists_public_names_and_modules_alone(name):
    module = importlib.import_module(name)
    modules = {each for each in dir(module) if isinstance(getattr(module, each), ModuleType)}
    shown = {each for each in dir(module) if not each.startswith("__")}
    assert shown - modules == {each for each in module.__all__ if not each.startswith("__")} - modules
    assert all(f"{name}.{each}" in sys.modules for each in modules)


@pytest.mark.frameworks
def test_importing_pagestream_is_enough_for_its_public_modules():
    code = """
import pagestream
print(pagestream.errors.FormatError.__name__)
print(pagestream.safetensors.safe_open.__name__, pagestream.safetensors.numpy.load_file.__name__)
print(pagestream.torch.load_into.__name__)
"""
    assert output_of(code, with_torch=True).split() == ["FormatError", "safe_open", "load_file", "load_into"]


def test_without_torch_the_error_says_how_to_install_it():
    code = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import pagestream
try:
    pagestream.torch
except ModuleNotFoundError as error:
    print(error.name, error)
import inspect
assert "torch" not in dir(pagestream)
assert dict(inspect.getmembers(pagestream))["errors"] is pagestream.errors  # as `help` does
"""
    assert output_of(code) == (
        "torch pagestream.torch needs PyTorch, which is not installed: pip install 'pagestream[torch]'"
    )


def public_things():
    for module in map(importlib.import_module, PUBLIC):
        for name in module.__all__:
            yield module.__name__, name, getattr(module, name)


@pytest.mark.frameworks
def test_public_names_show_the_module_that_users_import_them_from():
    shown = {
        f"{module}.{name}": f"{thing.__module__}.{thing.__qualname__}"
        for module, name, thing in public_things()
        if callable(thing) and not name.startswith("_")
    }
    assert len(shown) > 40
    errors = {
        name: f"pagestream.errors.{name.rpartition('.')[2]}" for name in shown if name.endswith("Error")
    }
    assert shown == {name: name for name in shown} | errors


def test_public_things_are_pickled_by_their_public_names():
    info = pagestream.TensorInfo("a", "F32", (1,), 4, "model.safetensors", 8)
    pickled = pickle.dumps([info, pagestream.open_tokens])
    assert b"pagestream.weights" not in pickled
    assert pickle.loads(pickled) == [info, pagestream.open_tokens]


def callables_of(name, thing):
    if inspect.isclass(thing):
        members = {key: value for key, value in vars(thing).items() if not key.startswith("_")}
        members |= {key: vars(thing)[key] for key in ("__init__", "__new__") if key in vars(thing)}
        for key, value in members.items():
            function = getattr(getattr(value, "fget", value), "__func__", getattr(value, "fget", value))
            if inspect.isfunction(function):
                yield f"{name}.{key}", function
    if inspect.isclass(thing) or inspect.isfunction(thing):
        yield name, thing


@pytest.mark.frameworks
def test_the_type_hints_of_every_public_callable_can_be_evaluated():
    """Libraries that build command lines from signatures do this, for example jsonargparse and pydantic."""
    frameworks = [f"pagestream.safetensors.{name}" for name in ("numpy", "torch", "flax")]
    modules = [importlib.import_module(name) for name in PUBLIC + frameworks]
    things = [(f"{each.__name__}.{name}", getattr(each, name)) for each in modules for name in each.__all__]
    found = {}
    for name, thing in things:
        for label, function in callables_of(name, thing):
            found[label] = typing.get_type_hints(function)
    assert len(found) > 150
    assert found["pagestream.open_checkpoint"]["return"] is pagestream.Checkpoint
    assert found["pagestream.TensorInfo"]["shape"] == tuple[int, ...]


def test_importing_it_imports_no_unused_module():
    code = """
import sys
import pagestream
print("numpy" in sys.modules, *sorted(name for name in sys.modules if name.startswith("pagestream.")))
pagestream.MappedFile
print("numpy" in sys.modules, "pagestream.tokens" in sys.modules, "MappedFile" in vars(pagestream))
"""
    before, after = output_of(code).splitlines()
    ours = (
        "_common",
        "_common.checks",
        "_common.environment",
        "_common.interpreters",
        "_common.public",
        "_native",
        "errors",
    )
    assert before.split() == ["False", *(f"pagestream.{name}" for name in ours)]
    assert after == "True False True"


def test_opening_a_checkpoint_imports_no_unused_module(tmp_path):
    save_file({"a": np.ones(3)}, tmp_path / "a.safetensors")
    code = """
import sys
import numpy
import pagestream
before = set(sys.modules)
assert pagestream.open_checkpoint(sys.argv[1])["a"].sum() == 3
print(*sorted({"concurrent.futures", "hashlib", "html", "random"} & (set(sys.modules) - before)))
"""
    # Each takes up to a MiB in every process: hashlib alone brings OpenSSL.
    assert output_of(code, tmp_path / "a.safetensors") == ""


def test_a_name_may_be_used_first_by_many_threads_at_once():
    code = """
import sys, threading
import pagestream
sys.setswitchinterval(1e-6)
barrier, found = threading.Barrier(8), []
def use():
    barrier.wait()
    found.append(pagestream.TokenLoader)
threads = [threading.Thread(target=use) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(found), len(set(found)))
"""
    assert output_of(code) == "8 1"


def test_an_unknown_name_raises_the_usual_error_of_a_module():
    with pytest.raises(AttributeError, match="module 'pagestream' has no attribute 'open_token'"):
        _ = pagestream.open_token
    with pytest.raises(ImportError, match="cannot import name 'open_token' from 'pagestream'"):
        from pagestream import open_token  # noqa: F401
