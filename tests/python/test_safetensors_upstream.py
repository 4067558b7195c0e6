"""Upstream's own unmodified test files, from its source distribution, run against pagestream."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from importlib.metadata import version
from pathlib import Path

import pytest

from support import real
from support.process import PROGRAMS
from support.torch_process import run_torch

ROOT = Path(__file__).parents[2]
VERSION = version("safetensors")

# Tests that pagestream fails on purpose, with the reasons.
ON_PURPOSE = {
    # pagestream's error has errno, filename and Python's text. Upstream reports all failures as ENOENT.
    "test_simple.ErrorsTestCase.test_file_not_found",
    # Upstream refuses [:20] of ten rows. pagestream clips it, as NumPy does, and as upstream does for torch.
    "test_simple.ReadmeTestCase.test_numpy_slice",
}
# Without a GPU, upstream's code fails these tests too.
GPU = {
    "test_paddle_comparison.WithOpenCase.test_paddle_slice_gpu",
    "test_paddle_comparison.WithOpenCase.test_paddle_tensor_gpu",
}
# The reasons for which upstream's tests skip themselves.
ABSENT = (
    "Cuda is not available",
    "HPU is not available",
    "MPS is not available",
    "Mlx is not available on non Mac",
    "Npu is not available",
    "Only 1 device available",
    "Will not work without s3 access",
)
FILES = [
    "test_simple",
    "test_handle",
    "test_multithreaded",
    "test_threadable",
    "test_pread_backend",
    "test_pt_comparison",
    "test_pt_model",
    "test_flax_comparison",
    "test_tf_comparison",
    "test_mlx_comparison",
    "test_paddle_comparison",
]


@pytest.fixture(scope="session")
def sources():
    """Downloads upstream's sources once."""
    folder = ROOT / "target" / "upstream"
    archive = folder / f"safetensors-{VERSION}.tar.gz"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
        command = [*pip, "--no-binary", ":all:", "--dest", folder, f"safetensors=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            real.missing(f"upstream's sources cannot be fetched: {done.stderr[-500:]}")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / f"safetensors-{VERSION}" / "bindings" / "python"


def test_every_file_of_upstreams_is_run(sources):
    assert sorted(path.stem for path in (sources / "tests").glob("test_*.py")) == sorted(FILES)


@pytest.mark.frameworks
@pytest.mark.parametrize("name", FILES)
def test_upstreams_tests_pass_with_ours_but_for_those_that_are_listed(sources, tmp_path, name):
    (tmp_path / "tests").symlink_to(sources / "tests")
    report = tmp_path / "report.xml"
    program = PROGRAMS / "safetensors_upstream/upstreams_tests.py"
    done = run_torch(program, f"tests/{name}.py", report, cwd=tmp_path, has_brief_end=True)
    assert report.exists(), done.stdout + done.stderr
    failed, skipped, count = set(), set(), 0
    for case in ET.parse(report).iter("testcase"):
        count += 1
        test = f"{case.get('classname', '').removeprefix('tests.')}.{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(test)
        note = case.find("skipped")
        if note is not None and note.get("type") != "pytest.xfail":
            skipped.add(note.get("message"))
    assert count > 0
    expected = {test for test in (*ON_PURPOSE, *GPU) if test.startswith(f"{name}.")}
    assert failed == expected, done.stdout[-5000:]
    assert skipped <= set(ABSENT), skipped
