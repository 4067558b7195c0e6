"""The published files: an sdist that builds, and one wheel that works in an environment with NumPy alone."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs/packaging"
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
# The oldest C library that Rust supports, which is also the tag of the published wheel.
GLIBC = "manylinux_2_17"
# An unoptimised build takes a fraction of the time, and packs the same files.
QUICKER = {
    f"CARGO_PROFILE_RELEASE_{name}": value
    for name, value in {"LTO": "off", "CODEGEN_UNITS": "16", "OPT_LEVEL": "0"}.items()
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def maturin(*command, cwd):
    # The folder persists between runs, so dependencies are built once.
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    environment = {**os.environ, **QUICKER, "CARGO_TARGET_DIR": str(Path(target) / "packaging")}
    # maturin runs the first `python3` on PATH to find zig.
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return run(sys.executable, "-m", "maturin", *command, cwd=cwd, env=environment)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    out = tmp_path_factory.mktemp("sdist")
    maturin("sdist", "--out", out, cwd=ROOT)
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Builds the wheel from the sdist, for an old C library."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    options = ("--release", "--zig", "--compatibility", GLIBC, "--out", out)
    maturin("build", *options, cwd=source / f"pagestream-{VERSION}")
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Makes an environment that contains the wheel and its dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    python = folder / "bin/python"
    # Compiling NumPy's modules would take time, and the tests use few of them.
    pip_for(python, "install", "--quiet", "--disable-pip-version-check", "--no-compile", wheel)
    return python


def pip_for(python, *arguments, **options):
    """Runs this environment's pip for another environment, which has no pip."""
    return run(sys.executable, "-m", "pip", "--python", python, *arguments, **options)


def test_the_sdist_contains_the_build_files_and_no_more(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Cargo.toml",
        "Cargo.lock",
        "pyproject.toml",
        "README.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "LICENSE-THIRD-PARTY",
        "pagestream.cdx.json",
    } < names
    # Users may build the sdist with another compiler than the project's.
    assert "rust-toolchain.toml" not in names
    assert "python/pagestream/__init__.py" in names
    rooms = {name.partition("/")[0] for name in names}
    assert not rooms & {".ci", "docs", "examples", "target", ".venv"}
    assert sdist.stat().st_size < 2 << 20


def test_the_wheel_is_one_for_every_python_and_an_old_c_library(wheel):
    *_, python_tag, abi_tag, platforms = wheel.stem.split("-")
    assert (python_tag, abi_tag) == ("cp311", "abi3")
    assert f"{GLIBC}_x86_64" in platforms.split(".")
    assert wheel.stat().st_size < 8 << 20


def test_the_wheel_has_licence_types_and_bill_of_materials(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"pagestream-{VERSION}.dist-info"
        (bill,) = [name for name in names if name.startswith(f"{info}/sboms/")]
        assert archive.read(bill) == (ROOT / "pagestream.cdx.json").read_bytes()
        licenses = archive.read(f"{info}/licenses/LICENSE-THIRD-PARTY")
        metadata = archive.read(f"{info}/METADATA").decode()
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert licenses == (ROOT / "LICENSE-THIRD-PARTY").read_bytes()
    assert {f"{info}/licenses/LICENSE-MIT", f"{info}/licenses/LICENSE-APACHE"} < names
    assert {"pagestream/py.typed", "pagestream/_native.pyi", "pagestream/_native.abi3.so"} < names
    assert {name.partition("/")[0] for name in names} == {"pagestream", info}
    assert re.findall(r"^Requires-Dist: (?!.*extra ==)(.*)$", metadata, re.MULTILINE) == ["numpy>=1.26"]
    assert "pagestream=pagestream.cli:main" in entry_points.replace(" ", "")


def test_the_wheel_works_with_numpy_alone(python, tmp_path):
    # `make` silences pip.
    speaking = {name: value for name, value in os.environ.items() if name != "PIP_QUIET"}
    installed = json.loads(pip_for(python, "list", "--format=json", env=speaking))
    assert {each["name"] for each in installed} == {"numpy", "pagestream"}
    assert run(python, "-I", PROGRAMS / "smoke.py", tmp_path) == f"pagestream {VERSION} works\n"


def test_the_first_pages_work_without_torch(python, tmp_path):
    pip_for(python, "install", "--quiet", "--no-deps", "--target", tmp_path / "extra", "safetensors")
    pages = [ROOT / "README.md", ROOT / "docs/start.md"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "extra")}
    printed = run(python, PROGRAMS / "paste.py", *pages, cwd=tmp_path, env=environment)
    # The loader block in README needs torch.
    assert printed.splitlines()[-1] == "6 blocks"


def test_the_command_says_what_it_needs(python):
    done = subprocess.run(
        [python, "-m", "pagestream", "info", "x"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'pagestream[cli]'" in done.stderr
