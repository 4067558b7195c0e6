"""`examples/demo`, run as users run it, with little input and few steps."""

import dataclasses
import functools
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pagestream import MappedFile

from support.torch_process import run_torch

DEMO = Path(__file__).parents[2] / "examples" / "demo"
FILES = {
    "corpus.json",
    "demo.png",
    "model.json",
    "model.safetensors",
    "results.json",
    "tokenizer.json",
    "train.bin",
    "val.bin",
}
LITTLE = ("--steps", "3", "--max-files", "40", "--rounds", "1", "--cold-mib", "8")
STOP_AFTER_TRAINING = ("--min-loss-drop", "100")
FOUND = "found complete from an earlier run"

pytestmark = [pytest.mark.demo, pytest.mark.timeout(3000)]


run_fork = functools.partial(run_torch, has_brief_end=True)


def run_folder(program, *arguments, **options):
    """Runs the demo's folder as a program, in its own Python process."""
    command = [sys.executable, program.parent, *arguments]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)


class Workplace:
    """An output directory, and directories that must stay empty."""

    def __init__(self, root):
        self.output = root / "output"
        self.elsewhere = {name: root / name for name in ("home", "temporary", "working")}
        for path in self.elsewhere.values():
            path.mkdir()

    def run(self, *arguments, run=run_fork):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        environment |= {"HOME": str(self.elsewhere["home"]), "TMPDIR": str(self.elsewhere["temporary"])}
        command = (DEMO / "__main__.py", "--output", self.output, *LITTLE, *arguments)
        return run(*command, cwd=self.elsewhere["working"], env=environment)


@dataclasses.dataclass(frozen=True)
class Run:
    """The outcome of one run, and the files it left behind."""

    printed: str
    results: dict
    files: dict[str, int]  # name -> time of the last write
    picture: bytes  # the first bytes of demo.png

    @classmethod
    def in_(cls, place, **options):
        process = place.run("--min-loss-drop", "0.01", **options)
        assert process.returncode == 0, process.stdout + process.stderr
        files = {path.name: path.stat().st_mtime_ns for path in place.output.iterdir() if path.is_file()}
        results = json.loads((place.output / "results.json").read_text())
        return cls(process.stdout, results, files, (place.output / "demo.png").read_bytes()[:8])


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    return Workplace(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def runs(workplace):
    """Runs the demo twice in the same directory."""
    return Run.in_(workplace, run=run_folder), Run.in_(workplace)


def test_writes_its_files_and_nothing_elsewhere(workplace, runs):
    assert all(run.files.keys() == FILES for run in runs)
    assert [list(path.iterdir()) for path in workplace.elsewhere.values()] == [[], [], []]
    # Other tests run the demo in the same folder, and may have removed the picture.
    assert all(run.picture.startswith(b"\x89PNG") for run in runs)


def test_results(runs):
    results = runs[0].results
    assert results.keys() == {
        "comparisons",
        "corpus",
        "environment",
        "reopened",
        "sample",
        "section_seconds",
        "training",
    }
    assert results["training"]["loss_drop"] >= 0.01
    assert len(results["training"]["curve"]["train"]) == 3
    assert results["reopened"]["arrays_inside_mapping"]
    assert results["sample"].startswith("def ")


def test_token_files_are_as_long_as_reported(workplace, runs):
    corpus = runs[0].results["corpus"]
    assert (workplace.output / "train.bin").stat().st_size == 2 * corpus["train_tokens"]
    assert (workplace.output / "val.bin").stat().st_size == 2 * corpus["validation_tokens"]


def test_every_comparison_is_printed_with_its_verdict(runs):
    printed = runs[0].printed.splitlines()
    rows = runs[0].results["comparisons"]
    assert {row["unit"] for row in rows} == {"seconds", "bytes"}
    for row in rows:
        verdict = "LOST" if row["verdict"] == "lost" else row["verdict"]
        cells = [row["case"], row["ours"], row["theirs"]]
        lines = [line for line in printed if all(cell in line for cell in cells)]
        assert any(line.endswith(verdict) for line in lines), row


def test_cold_reads_are_compared_too(runs):
    for run in runs:
        rows = [row for row in run.results["comparisons"] if row["group"].startswith("cold")]
        assert [row["theirs"] for row in rows] == ["nanoGPT get_batch", "np.memmap, MADV_RANDOM"]
        assert all(row["ours"] == "TokenLoader" for row in rows)
        assert "from a file of 8 MiB" in rows[0]["group"]


def test_second_run_reuses_and_says_so(runs):
    first, second = runs
    assert first.printed.count(FOUND) == 0
    assert second.printed.count(FOUND) == 2
    for run, reused in zip(runs, (False, True), strict=True):
        assert (run.results["corpus"]["reused"], run.results["training"]["reused"]) == (reused, reused)
    rewritten = {name for name in FILES if first.files[name] != second.files[name]}
    assert rewritten == {"demo.png", "results.json"}
    assert first.results["sample"] == second.results["sample"]


@pytest.mark.usefixtures("runs")
def test_a_loss_that_fell_too_little_fails(workplace):
    result = workplace.run(*STOP_AFTER_TRAINING)
    assert result.returncode == 1
    assert "FAILED: validation loss" in result.stderr
    assert "less than 100" in result.stderr
    assert not (workplace.output / "results.json").exists()


@pytest.mark.usefixtures("runs")
def test_a_damaged_file_is_made_again(workplace):
    path = workplace.output / "train.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    result = workplace.run(*STOP_AFTER_TRAINING)
    assert "train.bin, val.bin: written" in result.stdout
    assert path.read_bytes() == content


@pytest.mark.usefixtures("runs")
def test_a_model_of_other_settings_is_not_reused(workplace):
    result = workplace.run("--steps", "2", *STOP_AFTER_TRAINING)
    assert result.stdout.count(FOUND) == 1
    assert "trained: 2 steps" in result.stdout


@pytest.mark.usefixtures("runs")
def test_fresh_starts_over(workplace):
    result = workplace.run("--fresh", *STOP_AFTER_TRAINING)
    assert FOUND not in result.stdout
    assert "trained: 3 steps" in result.stdout


@pytest.mark.parametrize("arguments", [("--steps", "0"), ("--max-files", "some"), ("--no-such-option",)])
def test_wrong_use(tmp_path, arguments):
    place = Workplace(tmp_path)
    assert place.run(*arguments).returncode == 2
    assert not place.output.exists()


@pytest.fixture
def _demo_modules(monkeypatch):
    monkeypatch.syspath_prepend(str(DEMO))


@pytest.mark.usefixtures("_demo_modules")
def test_a_file_that_stays_in_the_page_cache_is_not_called_cold(tmp_path):
    import compare_cold
    from files import DemoError

    path = tmp_path / "cold.bin"
    path.write_bytes(bytes(16 * mmap.PAGESIZE))
    compare_cold.evict(path)
    with MappedFile(path) as held:
        assert held.residency().fraction == 0
        held.lock()
        with pytest.raises(DemoError, match=r"100% of .*cold\.bin stay in the page cache"):
            compare_cold.evict(path)


@pytest.mark.usefixtures("_demo_modules")
def test_a_full_disk_is_reported_in_a_sentence(tmp_path):
    import compare_cold
    from files import DemoError

    with (
        pytest.raises(DemoError, match="are free; see --cold-mib"),
        compare_cold.cold_file(tmp_path / "cold.bin", np.zeros(8, "u2"), 1 << 60),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_demo_modules")
def test_wrong_batches_are_found():
    import token_batches
    from files import DemoError

    tokens = np.random.default_rng(0).integers(0, 5000, 3000, "u2")
    x, y = token_batches.windows_batch(tokens, (8, 16))
    content = tokens.tobytes()
    token_batches.check(content, (8, 16), "right", [(x, y)])
    other = x.clone()
    other[3, 5] ^= 1
    shifted = torch.from_numpy(np.frombuffer(content[1:-1], "u2")[:136].reshape(8, 17).astype("i8"))
    wrong = {
        "another type": (x.int(), y.int()),
        "another shape": (x[:4], y[:4]),
        "y is x": (x, x),
        "another token": (other, torch.cat([other[:, 1:], y[:, -1:]], 1)),
        "too large a token": (x + 65536, y + 65536),
        "half a token away": (shifted[:, :-1].contiguous(), shifted[:, 1:].contiguous()),
        "always the same": (x[:1].repeat(8, 1), y[:1].repeat(8, 1)),
    }
    for name, batch in wrong.items():
        with pytest.raises(DemoError, match=f"^{name} gave"):
            token_batches.check(content, (8, 16), name, [batch])


def test_too_few_files_are_reported_in_a_sentence(tmp_path):
    result = Workplace(tmp_path).run("--max-files", "5")
    assert result.returncode == 1
    assert "at least 20 are needed" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("number", "text"),
    [(3281.6, "3,282"), (0.01234, "0.0123"), (4.2, "4.20"), (42.04, "42.0"), (999_999, "999,999"), (0, "0")],
)
def test_labels_of_bars_have_three_digits_and_no_exponent(number, text, monkeypatch):
    monkeypatch.syspath_prepend(str(DEMO))
    from plot import plain

    assert plain(number) == text
