"""``pagestream residency`` on terminals and in pipes, and the bar of ``warm`` and ``verify``."""

import re
import subprocess
import sys
from threading import RLock

import numpy as np
import pytest
from rich.progress import Task, TaskID
from typer.testing import CliRunner

from pagestream import MappedFile
from pagestream.cli import residency
from pagestream.cli._app import app
from pagestream.cli._progress import bar_of_bytes
from pagestream.cli.residency import _fitted
from pagestream.safetensors.numpy import save_file

from support.process import printed_on_terminal

MIB = 1 << 20
SHARDS = [f"ckpt/model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
COMMAND = [sys.executable, "-m", "pagestream", "residency"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ckpt").mkdir()
    for name in SHARDS:
        save_file({name: np.zeros(MIB, "f4")}, tmp_path / name)
    return tmp_path


def on_a_terminal(columns, folder, *arguments):
    """Returns the lines that the command prints on a terminal of this width, without colours."""
    found = printed_on_terminal([*COMMAND, *arguments], columns, cwd=folder)
    return re.sub(r"\x1b\[[0-9;]*m", "", found).splitlines()


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_each_file_has_one_line_of_a_terminal(folder, columns):
    lines = on_a_terminal(columns, folder, "ckpt")
    assert all(len(line) <= columns for line in lines)
    # The kernel may have reclaimed pages, so a cell may not be full.
    rows = [line for line in lines if "▏" in line]
    assert len(rows) == len(SHARDS)
    assert all(re.search("▕.{10,}▏$", row) for row in rows)
    if columns >= 80:
        assert [row.split()[0] for row in rows] == SHARDS


def test_a_pipe_gets_whole_names_and_bars_of_one_width(folder):
    done = subprocess.run([*COMMAND, "ckpt"], cwd=folder, capture_output=True, text=True, check=True)
    for name in SHARDS:
        assert re.search(rf"^{name} .* ▕.{{40}}▏$", done.stdout, re.MULTILINE)


def test_watch_redraws_until_ctrl_c_or_a_number_of_rounds(folder, monkeypatch):
    """The page cache changes between the two pictures."""
    path = str(folder / SHARDS[0])
    changes = iter(["evict", "warm", "Ctrl-C"])

    def pause():
        change = next(changes)
        if change == "Ctrl-C":
            raise KeyboardInterrupt
        with MappedFile(path) as file:
            getattr(file, change)()

    def bars(*arguments):
        found = CliRunner().invoke(app, ["residency", path, "--watch", *arguments])
        assert (found.exit_code, found.stderr) == (0, "")
        return re.findall("▕(.*)▏", found.stdout)

    monkeypatch.setattr(residency, "_pause", pause)
    assert bars("--rounds", "2")[1] == " " * 40
    assert len(bars()) == 2
    assert next(changes, None) is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--rounds 2", "--rounds 2 needs --watch"),
        ("--watch --json", "--watch draws on the terminal, and --json does not"),
        ("--watch --png x.png", "--watch draws on the terminal, and --png does not"),
    ],
)
def test_options_that_exclude_each_other(folder, arguments, told):
    found = CliRunner().invoke(app, ["residency", str(folder), *arguments.split()])
    assert found.exit_code == 2
    assert told in found.stderr


def test_a_terminal_is_cleared_before_each_picture(folder):
    found = printed_on_terminal([*COMMAND, "ckpt", "--watch", "--rounds", "1"], 80, cwd=folder)
    assert found.startswith("\x1b[2J\x1b[H")


def test_bars_fill_the_space_that_names_leave():
    assert _fitted(["a/b.bin", "a/c.bin"], 60) == ("", ["a/b.bin", "a/c.bin"], 53)
    assert _fitted([], 60) == ("", [], 60)


def test_the_common_folder_is_left_out_of_names_without_room():
    folder = f"{'a' * 20}/"
    assert _fitted([f"{folder}b.bin", f"{folder}c.bin"], 40) == (folder, ["b.bin", "c.bin"], 35)
    assert _fitted([f"{folder}b.bin"], 40) == (folder, ["b.bin"], 35)


def test_names_that_are_longer_still_lose_their_middle():
    folder, [name], cells = _fitted(["model.layers.17.experts.3.down_proj.weight"], 40)
    assert (folder, name, cells) == ("", "model.layer…_proj.weight", 16)


def test_the_bar_of_bytes_has_binary_units():
    task = Task(TaskID(0), "warm", 18 * MIB, 18 * MIB, _get_time=lambda: 2.0, _lock=RLock())
    task.start_time, task.stop_time, task.finished_speed = 0.0, 2.0, 9.0 * MIB
    texts = [str(column.render(task)) for column in bar_of_bytes().columns]
    assert "18.0/18.0 MiB" in texts
    assert "9 MiB/s" in texts
    assert not [text for text in texts if re.search(r"\d [kMG]?B\b", text)]
