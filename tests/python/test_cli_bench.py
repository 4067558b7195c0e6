"""``pagestream bench``: its measurements and its report."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from pagestream.cli import _console, _contests, bench
from pagestream.cli._app import app

MIB = 1 << 20
COLUMNS = 80


@pytest.fixture
def _little(monkeypatch):
    monkeypatch.setattr(bench, "_QUICK", bench._Scale(rounds=1, seconds=0.05, nbytes=8 * MIB))


def printed(*options):
    done = CliRunner().invoke(app, ["bench", "--quick", *map(str, options)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.frameworks
@pytest.mark.usefixtures("_little")
def test_results(tmp_path):
    results = json.loads(printed("--folder", tmp_path, "--png", tmp_path / "picture.png", "--json"))
    assert [result["is_ours"] for result in results] == [True, False, False] * 2 + [True, True, False] * 2
    assert all(result["low"] <= result["rate"] <= result["high"] for result in results)
    assert {result["unit"] for result in results} == {"windows", "bytes"}
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("_little")
def test_tables_fit_a_terminal_and_name_each_of_our_ways(tmp_path):
    found = printed("--folder", tmp_path)
    assert max(map(len, found.splitlines())) <= COLUMNS
    for way in ("TokenLoader", "pagestream load_file", "pagestream stream"):
        assert found.count(f"→ {way} is ") == 2


@pytest.mark.usefixtures("_little")
def test_a_file_system_in_memory_cannot_be_cold():
    assert "cold files were not measured: what /dev/shm holds stays in memory" in printed(
        "--folder", "/dev/shm"
    )


def results(unit="bytes", **rates):
    """Returns the rate of each way. The names of other libraries begin with "their"."""
    return [
        bench.Result("a file", way, unit, rate, rate, rate, not way.startswith("their"))
        for way, rate in rates.items()
    ]


def test_each_of_our_ways_is_compared_with_the_best_of_the_others():
    found = results(mapped=100.0, stream=60.0, ahead=80.1, their_slow=50.0, their_good=80.0)
    assert bench._verdicts(found) == [
        "mapped is 1.25 times as fast as their_good",
        "stream is slower than their_good, at 75% of its rate",
        "ahead is as fast as their_good",
    ]


def test_the_largest_figures_fit_a_terminal(capsys):
    title = "the first 2,048 random windows of 1,024 tokens, cold"
    ours, theirs = results("windows", ours=5e6, theirs=9e6)
    ours = dataclasses.replace(ours, way="TokenLoader")
    way = "torch's DataLoader (2 workers)"
    found = [dataclasses.replace(ours, contest=title), dataclasses.replace(theirs, contest=title, way=way)]
    bench._print_contest(_console.console(), found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{title} (windows a second)"
    assert lines[3].split() == f"{way} 9,000,000 9,000,000 9,000,000".split()
    assert lines[4] == f"→ TokenLoader is slower than {way}, at 56% of its rate"
    assert max(map(len, lines)) <= COLUMNS


def test_bytes_are_shown_as_mebibytes(capsys):
    bench._print_contest(_console.console(), results(ours=3000.0 * MIB, their=0.25 * MIB))
    title, _, ours, their, _, _ = capsys.readouterr().out.splitlines()
    assert title == "a file (MiB a second)"
    assert ours.split() == ["ours", "3,000", "3,000", "3,000"]
    assert their.split() == ["their", "0.25", "0.25", "0.25"]


def test_other_tokens_are_noticed():
    x = (np.arange(1024) * 40_503 % 65_536)[None].repeat(64, 0)
    y = (np.arange(1, 1025) * 40_503 % 65_536)[None].repeat(64, 0)
    _contests.prove(x, y)
    y[3, 7] += 1
    with pytest.raises(RuntimeError, match="other tokens"):
        _contests.prove(x, y)


def test_a_file_that_stays_in_the_page_cache_is_not_measured_as_cold(tmp_path, monkeypatch):
    monkeypatch.setattr(_contests, "_PATIENCE_SECONDS", 0.0)
    path = tmp_path / "tokens.bin"
    np.ones(MIB, "u2").tofile(path)
    contest = _contests.Contest("a file", "bytes", {"ours": lambda *_: (1, 1)}, (str(path),))
    assert contest.turn("ours", 0.0, 0) == 1
    kept = np.memmap(path, np.uint16, "r")
    assert kept.sum() == MIB
    with pytest.raises(OSError, match="its pages stay in the page cache"):
        contest.turn("ours", 0.0, 0)
