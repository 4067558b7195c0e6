"""Megatron's and datatrove's own code reads what we write, and we read what it writes.

In processes of their own: these packages warn at import, and take seconds for it.
"""

from __future__ import annotations

import numpy as np

from pagestream import open_tokens, write_tokens

from support.process import output_of
from support.token_files import tokens_of

# Of the sequences or documents, an empty one among them.
LENGTHS = [4, 0, 7, 1, 300]


READ_MEGATRON = """
import sys
import numpy as np
from megatron.core.datasets.indexed_dataset import IndexedDataset
for name in sys.argv[2:]:
    for mmap in (True, False):
        data = IndexedDataset(f"{sys.argv[1]}/{name}", mmap=mmap)
        expected = np.load(f"{sys.argv[1]}/{name}.npy")
        assert data.index.dtype == expected.dtype, (name, data.index.dtype)
        assert data.sequence_lengths.tolist() == [4, 0, 7, 1, 300]
        assert data.document_indices.tolist() == [0, 1, 2, 3, 4, 5]
        ends = np.cumsum(data.sequence_lengths)
        for number, end in enumerate(ends):
            found = data[number]
            assert (found == expected[end - len(found):end]).all(), (name, number)
print("good")
"""


def test_megatron_reads_what_we_write(tmp_path):
    names = []
    for dtype in ("u1", "i1", "<i2", "<i4", "<i8", "<u2"):
        tokens = tokens_of(dtype, sum(LENGTHS))
        name = f"t_{np.dtype(dtype).name}"
        np.save(tmp_path / f"{name}.npy", tokens)
        parts = np.split(tokens, np.cumsum(LENGTHS)[:-1])
        write_tokens(tmp_path / name, parts, dtype=dtype, format="megatron")
        names.append(name)
    assert output_of(READ_MEGATRON, tmp_path, *names).endswith("good")


WRITE_MEGATRON = """
import sys
import numpy as np, torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
for dtype in (np.uint16, np.int32, np.int64):
    for multimodal in (False, True):
        name = f"{sys.argv[1]}/{np.dtype(dtype).name}_{multimodal}"
        builder = IndexedDatasetBuilder(f"{name}.bin", dtype=dtype, multimodal=multimodal)
        tokens = torch.arange(312)
        end = 0
        for number, length in enumerate([4, 0, 7, 1, 300]):
            builder.add_item(tokens[end:end + length], number % 2 if multimodal else 0)
            end += length
            for _ in range({0: 2, 2: 1, 4: 1}.get(number, 0)):
                builder.end_document()
        builder.finalize(f"{name}.idx")
print("good")
"""


def test_we_read_what_megatron_writes(tmp_path):
    assert output_of(WRITE_MEGATRON, tmp_path).endswith("good")
    for dtype in ("uint16", "int32", "int64"):
        for multimodal in (False, True):
            corpus = open_tokens(tmp_path / f"{dtype}_{multimodal}")
            np.testing.assert_array_equal(corpus[:], np.arange(312, dtype=dtype), strict=True)
            assert corpus.documents.starts.tolist() == [0, 4, 4, 11, 312]


READ_DATATROVE = """
import sys
import numpy as np
from datatrove.utils.dataset import DatatroveFileDataset
for name, size in (("uint16", 2), ("uint32", 4)):
    windows = DatatroveFileDataset(f"{sys.argv[1]}/{name}.ds", 16, token_size=size)
    expected = np.fromfile(f"{sys.argv[1]}/{name}.ds", name)
    assert len(windows) == len(expected) // 17
    for number in range(len(windows)):
        found = windows[number]["input_ids"].tolist()
        assert found == expected[17 * number:17 * number + 17].tolist(), (name, number)
print("good")
"""


def test_datatrove_reads_what_we_write(tmp_path):
    for name in ("uint16", "uint32"):
        write_tokens(tmp_path / f"{name}.ds", np.arange(1000) * 63 % 65521, dtype=name)
    assert output_of(READ_DATATROVE, tmp_path) == "good"


WRITE_DATATROVE = """
import sys
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
for size in (2, 4):
    for metadata in (False, True):
        file = TokenizedFile(
            sys.argv[1], f"{size}_{metadata}.ds", save_loss_metadata=True, token_size=size,
            save_final_metadata=metadata, tokenizer_name_or_path="gpt2",
        )
        end = 0
        for length in [4, 0, 7, 1, 300]:
            file.write(list(range(end, end + length)), [True] * length)
            end += length
        file.close()
print("good")
"""


def test_we_read_what_datatrove_writes(tmp_path):
    assert output_of(WRITE_DATATROVE, tmp_path) == "good"
    for size, dtype in ((2, "uint16"), (4, "uint32")):
        for metadata in (False, True):
            corpus = open_tokens(tmp_path / f"{size}_{metadata}.ds")
            np.testing.assert_array_equal(corpus[:], np.arange(312, dtype=dtype), strict=True)
            assert corpus.documents.starts.tolist() == [0, 4, 4, 11, 12, 312]
    assert [shard.format for shard in open_tokens(tmp_path / "2_*").shards] == ["datatrove"] * 2
