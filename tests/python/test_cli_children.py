"""The ``sitecustomize`` of `pagestream run` in the child processes of a program."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pagestream.cli.run import _CHILDREN

from support.process import PROGRAMS, run_python

ROOT = Path(__file__).parents[2]
SITECUSTOMIZE = Path(_CHILDREN) / "sitecustomize.py"
# The syntax that Python 2.7 and Python 3 share, as far as a small module needs it.
COMMON_SYNTAX = frozenset(
    """
    Module Import ImportFrom alias ClassDef FunctionDef arguments arg Return Assign Expr
    If Pass Try ExceptHandler Call keyword Attribute Subscript Slice Name Constant Load Store
    Tuple List ListComp GeneratorExp comprehension BoolOp And Or UnaryOp Not Compare Eq NotEq GtE Is IsNot
    """.split()  # noqa: SIM905 - one line of words instead of forty
)


def search_path(*folders):
    """Returns a PYTHONPATH that begins with these folders."""
    return os.pathsep.join(filter(None, (*map(str, folders), os.environ.get("PYTHONPATH"))))


@pytest.mark.parametrize(
    "error", ["import not_installed", "import not_installed.sitecustomize", "raise ImportError('x')", "1 / 0"]
)
def test_an_error_in_the_users_sitecustomize_is_reported(tmp_path, error):
    """The messages are the same as without pagestream."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nprint('begins', file=sys.stderr)\n{error}\n")
    alone = run_python("print('child')", PYTHONPATH=search_path(tmp_path))
    assert (alone.returncode, alone.stdout) == (0, "child\n")
    assert re.search(r"begins\n(.*\n)*\w+Error: ", alone.stderr)
    child = run_python("print('child')", PYTHONPATH=search_path(SITECUSTOMIZE.parent, tmp_path))
    assert (child.returncode, child.stdout, child.stderr) == (0, "child\n", alone.stderr)


def test_the_command_passes_the_error_on(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import not_installed\n")
    environment = {**os.environ, "PYTHONPATH": search_path(tmp_path)}
    command = [sys.executable, "-m", "pagestream", "run", PROGRAMS / "cli_children/starts.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "child\n"), done.stderr
    # The command, the program and its child report one error each.
    assert done.stderr.count("ModuleNotFoundError: No module named 'not_installed'") == 3


def test_no_other_sitecustomize_is_no_error():
    code = "import sys; print(type(sys.meta_path[0]).__name__)"
    done = run_python(code, PYTHONPATH=search_path(SITECUSTOMIZE.parent))
    assert (done.returncode, done.stdout, done.stderr) == (0, "_Installer\n", "")


def test_python_2_7_can_parse_it():
    source = SITECUSTOMIZE.read_text("ascii")
    for node in ast.walk(ast.parse(source, feature_version=(3, 4))):
        name, line = type(node).__name__, getattr(node, "lineno", None)
        assert name in COMMON_SYNTAX, f"line {line}: {name} is not syntax of Python 2.7"
        match node:
            case ast.ClassDef():
                assert not node.keywords, line
            case ast.FunctionDef():
                assert node.returns is None, line
            case ast.arguments():
                assert not node.posonlyargs, line
                assert not node.kwonlyargs, line
            case ast.arg():
                assert node.annotation is None, line
            case ast.ImportFrom():
                assert node.module != "__future__", line
            case ast.Name():
                assert node.id not in ("print", "super"), line
            case ast.Constant():
                assert node.value is not ..., line


def test_an_older_python_gets_the_users_sitecustomize_and_nothing_else(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("OWNER = 'user'\n")
    done = run_python(PROGRAMS / "cli_children/an_older_python.py", SITECUSTOMIZE.parent, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True user False\n", "")


def test_the_oldest_python_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["requires-python"].removeprefix(">=").replace(".", ", ")
    assert f"\n_OLDEST = ({version})\n" in SITECUSTOMIZE.read_text()
