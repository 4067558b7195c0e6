"""``pagestream bench --suite field``: the outcome of each loader in each case, and the report."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

from pagestream import open_checkpoint
from pagestream.cli import bench
from pagestream.cli._app import app
from pagestream.cli.field import loaders, suite

from support import real

MIB = 1 << 20
FEW = {
    "tokens": ("pagestream, TokenLoader", "np.memmap, MADV_RANDOM"),
    "weights": ("pagestream, stream", "safetensors, safe_open"),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.fixture
def _few_loaders(monkeypatch):
    """Keeps one loader of ours and one rival, because each turn starts a process with new imports."""
    kinds = {kind: {name: loaders.KINDS[kind][name] for name in names} for kind, names in FEW.items()}
    monkeypatch.setattr(loaders, "KINDS", kinds)
    monkeypatch.setattr(bench, "_QUICK_FIELD", suite.Scale(rounds=1, nbytes=16 * MIB))
    monkeypatch.setattr(suite, "_MOST_SECONDS", 100.0)  # the machine may be busy


@pytest.fixture
def _without_torch(tmp_path_factory, monkeypatch):
    """Hides torch from the loaders. They work without it, and its import takes seconds."""
    folder = tmp_path_factory.mktemp("without_torch")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.mark.parametrize("is_measured", [False, True])
@pytest.mark.usefixtures("_few_loaders")
def test_a_token_file_is_converted_for_measured_loaders_alone(tmp_path, monkeypatch, is_measured):
    """A conversion that fails is a remark, and the other loaders are measured."""
    if is_measured:
        monkeypatch.setitem(loaders.KINDS["tokens"], "LitData", loaders.TOKENS["LitData"])
    monkeypatch.setattr(loaders, "find_spec", lambda _name: True)  # as if litdata were installed
    broken = tmp_path / "litdata.py"
    broken.write_text("raise ImportError('this litdata is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    remarks = []
    assert suite._written(tmp_path, suite.Scale(rounds=1, nbytes=MIB), remarks).keys() == {
        "tokens",
        "weights",
    }
    told = "LitData could not convert the token file: ImportError: this litdata is broken"
    assert remarks == ([told] if is_measured else [])


@pytest.mark.usefixtures("_few_loaders", "_without_torch")
def test_all_cases_are_measured_and_all_losses_reported(tmp_path):
    real.need_tool("bindfs")
    options = ["--suite", "field", "--quick", "--folder", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, ["bench", *options, "--png", str(tmp_path / "field.png")])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    outcomes = {(each["case"], each["loader"]): each["outcome"] for each in found["findings"]}
    ours, memmap = FEW["tokens"]
    stream, stock = FEW["weights"]
    for case in ("cold", "in the page cache", "FUSE with direct_io", "in 640 MiB of memory"):
        assert outcomes[f"tokens, {case}", ours] == "right"
        assert outcomes[f"weights, {case}", stream] == outcomes[f"weights, {case}", stock] == "right"
    assert outcomes["tokens, in the page cache", memmap] == "right"
    assert "No such device" in outcomes["tokens, FUSE with direct_io", memmap]
    assert outcomes["tokens, cut while they are read", memmap] == "killed by SIGBUS"
    assert outcomes["tokens, cut while they are read", ours].startswith("raised MappedReadError")
    assert outcomes["weights, cut while they are read", stock] == "killed by SIGBUS"
    # Either the loader has read the whole file before it is truncated, or it raises an error.
    assert outcomes["weights, cut while they are read", stream].startswith(
        ("right", "raised MappedReadError")
    )
    cold = {each["loader"]: each for each in found["findings"] if each["case"] == "weights, cold"}
    assert 0.9 <= cold[stream]["read_per_byte"] <= 1.2
    assert cold[stock]["anonymous_bytes"] >= 0
    for line in found["losses"]:
        assert line.startswith(("tokens, ", "weights, "))
    assert os.listdir(tmp_path) == ["field.png"]


@pytest.mark.usefixtures("_few_loaders")
def test_a_slow_loader_is_distinguished_from_one_that_skips_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "_MOST_SECONDS", 0.0)
    path = str(tmp_path / "model.safetensors")
    safetensors.numpy.save_file({name: np.ones(8, "f4") for name in "abc"}, path)
    with open_checkpoint(path) as weights:
        sums = {name: int(array.view("u8").sum(dtype="u8")) for name, array in weights.items()}
    for found in suite._of_case(suite._Case("weights", "weights", path), sums):
        assert found.outcome == "stopped after 0 s"
        assert found.rate > 0
    monkeypatch.setattr(suite, "_MOST_SECONDS", 60.0)
    more = {**sums, "d": 0}
    for found in suite._of_case(suite._Case("weights", "weights", path), more):
        assert (found.outcome, found.rates) == ("tensors are missing", [])


def finding(loader, outcome="right", *, is_ours=False, rate=100.0, **figures):
    return suite.Finding("case", loader, outcome, is_ours, [rate], **figures)


def test_losses_are_figures_where_another_library_beats_our_best():
    figures = {"p99_seconds": 0.2, "read_per_byte": 1.0, "cpu_seconds_per_gb": 1.0, "anonymous_bytes": 100}
    ours = [
        finding("stream", is_ours=True, **figures),
        finding("safe_open", is_ours=True, rate=150.0, **{**figures, "anonymous_bytes": 50}),
    ]
    equal = finding("equal", rate=150.0, **{**figures, "anonymous_bytes": 50})
    assert suite.losses([*ours, equal]) == []
    better = finding("better", rate=300.0, **{**figures, "anonymous_bytes": 25, "p99_seconds": 0.1})
    assert suite.losses([*ours, equal, better]) == [
        "case: better is 2.00 times as fast",
        "case: better has 0.50 of our 99th percentile",
        "case: better has 0.50 of our anonymous memory",
    ]
    dead = finding("stream", "killed by SIGBUS", is_ours=True)
    assert suite.losses([dead, equal]) == ["case: equal ended right, pagestream did not"]


def test_a_loader_that_returns_wrong_bytes_is_reported(tmp_path):
    """The file contains other tokens than expected."""
    np.zeros(1 << 20, "u2").tofile(tmp_path / "tokens.bin")
    asked = {"kind": "tokens", "loader": FEW["tokens"][0], "path": str(tmp_path / "tokens.bin"), "seed": 0}
    asked |= {"most_steps": 3, "most_seconds": 5, "waits": False}
    command = [sys.executable, "-m", "pagestream.cli.field.worker", json.dumps(asked)]
    done = subprocess.run(command, input="\n", capture_output=True, text=True, check=True)
    ready, found = done.stdout.splitlines()
    assert ready == "ready"
    assert json.loads(found)["is_right"] is False


def test_an_unknown_suite_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["bench", "--suite", "all", "--folder", str(tmp_path)])
    assert done.exit_code == 2
