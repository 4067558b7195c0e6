"""The package itself: its names come when they are used, and there are no others."""

import ast
import importlib
from pathlib import Path

import pytest

import pagestream

from support.process import output_of


def imports_for_type_checkers():
    """The module of each name that type checkers read."""
    tree = ast.parse(Path(pagestream.__file__).read_text())
    blocks = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {alias.name: line.module for block in blocks for line in block.body for alias in line.names}


def test_type_checkers_and_programs_find_each_name_in_the_same_module():
    homes = imports_for_type_checkers()
    assert {*homes, "errors", "__version__"} == set(pagestream.__all__)
    for name, home in homes.items():
        assert getattr(pagestream, name) is getattr(importlib.import_module(home), name)
    assert set(pagestream.__all__) <= set(dir(pagestream))


def test_importing_it_waits_for_nothing_that_is_not_used_yet():
    code = """
import sys
import pagestream
print("numpy" in sys.modules, *sorted(name for name in sys.modules if name.startswith("pagestream.")))
pagestream.MappedFile
print("numpy" in sys.modules, "pagestream.tokens" in sys.modules, "MappedFile" in vars(pagestream))
"""
    before, after = output_of(code).splitlines()
    ours = ("_common", "_common.checks", "_common.environment", "_common.interpreters", "_native", "errors")
    assert before.split() == ["False", *(f"pagestream.{name}" for name in ours)]
    assert after == "True False True"


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


def test_a_name_that_there_is_not_is_told_as_any_module_does():
    with pytest.raises(AttributeError, match="module 'pagestream' has no attribute 'open_token'"):
        _ = pagestream.open_token
    with pytest.raises(ImportError, match="cannot import name 'open_token' from 'pagestream'"):
        from pagestream import open_token  # noqa: F401
