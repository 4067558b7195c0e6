"""Megatron and datatrove read our files, and pagestream reads theirs.

Each package runs in its own process, because it warns at import and takes seconds to import.
"""

from __future__ import annotations

import numpy as np
import pytest

from pagestream import open_tokens, write_tokens

from support.process import PROGRAMS, output_of, run_python
from support.token_files import tokens_of

pytestmark = pytest.mark.frameworks

# The lengths of the sequences or documents. One of them is empty.
LENGTHS = [4, 0, 7, 1, 300]


@pytest.fixture(scope="module")
def megatron(tmp_path_factory):
    """Runs Megatron, which reads our files and writes its own. Returns the folder and Megatron's output."""
    folder = tmp_path_factory.mktemp("megatron")
    names = []
    for dtype in ("u1", "i1", "<i2", "<i4", "<i8", "<u2"):
        tokens = tokens_of(dtype, sum(LENGTHS))
        name = f"t_{np.dtype(dtype).name}"
        np.save(folder / f"{name}.npy", tokens)
        parts = np.split(tokens, np.cumsum(LENGTHS)[:-1])
        write_tokens(folder / name, parts, dtype=dtype, format="megatron")
        names.append(name)
    program = PROGRAMS / "tokens_interchange/by_megatron.py"
    done = run_python(program, folder, *names, with_torch=True, has_brief_end=True)
    return folder, done


def test_megatron_reads_what_we_write(megatron):
    _, done = megatron
    assert done.stdout.split()[-1:] == ["read"], done.stderr


def test_we_read_what_megatron_writes(megatron):
    folder, done = megatron
    assert "written" in done.stdout.split(), done.stderr
    for dtype in ("uint16", "int32", "int64"):
        for multimodal in (False, True):
            corpus = open_tokens(folder / f"{dtype}_{multimodal}")
            np.testing.assert_array_equal(corpus[:], np.arange(312, dtype=dtype), strict=True)
            assert corpus.documents.starts.tolist() == [0, 4, 4, 11, 312]


READ_DATATROVE = PROGRAMS / "tokens_interchange/read_datatrove.py"


def test_datatrove_reads_what_we_write(tmp_path):
    for name in ("uint16", "uint32"):
        write_tokens(tmp_path / f"{name}.ds", np.arange(1000) * 63 % 65521, dtype=name)
    assert output_of(READ_DATATROVE, tmp_path) == "good"


WRITE_DATATROVE = PROGRAMS / "tokens_interchange/write_datatrove.py"


def test_we_read_what_datatrove_writes(tmp_path):
    assert output_of(WRITE_DATATROVE, tmp_path) == "good"
    for size, dtype in ((2, "uint16"), (4, "uint32")):
        for metadata in (False, True):
            corpus = open_tokens(tmp_path / f"{size}_{metadata}.ds")
            np.testing.assert_array_equal(corpus[:], np.arange(312, dtype=dtype), strict=True)
            assert corpus.documents.starts.tolist() == [0, 4, 4, 11, 12, 312]
    assert [shard.format for shard in open_tokens(tmp_path / "2_*").shards] == ["datatrove"] * 2
