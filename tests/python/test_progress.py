"""Progress of long operations: tqdm bars, plain lines without tqdm, and output on rank 0 alone."""

import os

import numpy as np
import pytest

from pagestream import MappedFile, open_checkpoint, write_tokens
from pagestream.safetensors.numpy import save_file

from support.process import output_of

WITHOUT_TQDM = """
import sys
sys.modules["tqdm"] = sys.modules["tqdm.auto"] = None
import pagestream
pagestream.MappedFile(sys.argv[1]).warm(progress=True)
"""


def test_a_bar_counts_bytes(big_file, capfd):
    MappedFile(big_file).warm(progress=True)
    drawn = capfd.readouterr().err
    assert "warm big.bin: 100%" in drawn
    assert "16.0M/16.0M" in drawn


def test_without_tqdm_there_is_a_line_for_each_tenth(big_file, capfd):
    output_of(WITHOUT_TQDM, big_file)
    from pagestream._common.progress import _Lines

    lines = _Lines(1000, "reading")
    for done in range(0, 1001, 50):
        lines(done)
    printed = capfd.readouterr().err.splitlines()
    assert len(printed) == 10
    assert printed[0] == "reading: 10 %, 100 bytes of 1000 bytes"
    assert printed[-1] == "reading: 100 %, 1000 bytes of 1000 bytes"
    unknown = _Lines(0, "writing")
    unknown(1 << 20)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("rank", "is_drawn"), [("0", True), ("1", False), (None, True)])
def test_one_rank_draws(big_file, capfd, monkeypatch, rank, is_drawn):
    """WORLD_SIZE alone does not tell which rank this process has."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    if rank is None:
        monkeypatch.delenv("RANK", raising=False)
    else:
        monkeypatch.setenv("RANK", rank)
    MappedFile(big_file).warm(progress=True)
    assert ("warm big.bin" in capfd.readouterr().err) is is_drawn


def test_a_function_is_called_on_each_rank(big_file, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    seen = []
    MappedFile(big_file).warm(progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (16 << 20, 16 << 20)


def test_every_long_operation_draws_a_bar(tmp_path, capfd):
    write_tokens(tmp_path / "t.bin", np.arange(1000), dtype="u2", progress=True)
    save_file({"a": np.zeros(1000, "f4")}, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path / "model.safetensors") as weights:
        for _ in weights.stream(progress=True):
            pass
        weights.write_checksums(progress=True)
        weights.verify(progress=True)
    drawn = capfd.readouterr().err
    assert drawn.count("100%") >= 4
    assert os.path.exists(tmp_path / "model.safetensors.xxh3.json")
