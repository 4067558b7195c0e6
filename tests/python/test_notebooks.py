"""The notebook representation of corpora and checkpoints: `_repr_html_`."""

from html.parser import HTMLParser

import numpy as np

from pagestream import open_checkpoint, open_tokens, write_tokens
from pagestream.safetensors.numpy import save_file


class Cells(HTMLParser):
    """Collects the texts of table cells, row by row, and all other text."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.other, self._open = [], [], []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        else:
            self.other.append(data)


def test_a_checkpoint_tells_types_and_largest_tensors(tmp_path):
    tensors = {f"<b>{number}": np.zeros((number + 1, 2), "f4") for number in range(12)}
    save_file({**tensors, "ids": np.zeros(3, "i8")}, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path / "model.safetensors") as weights:
        cells = Cells(weights._repr_html_())
    assert cells.other == ["Checkpoint: 13 tensors of 648 bytes in 1 file", "and 3 smaller tensors"]
    assert cells.rows[:3] == [
        ["dtype", "tensors", "elements", "size"],
        ["F32", "12", "156", "624 bytes"],
        ["I64", "1", "3", "24 bytes"],
    ]
    assert cells.rows[4] == ["<b>11", "F32", "[12, 2]", "96 bytes"]
    assert len(cells.rows) == 3 + 1 + 10


def test_an_empty_checkpoint(tmp_path):
    save_file({}, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path / "model.safetensors") as weights:
        assert Cells(weights._repr_html_()).other == ["Checkpoint: 0 tensors of 0 bytes in 1 file"]


def test_a_corpus_tells_its_files(tmp_path):
    for number in range(12):
        np.arange(100 + number, dtype="u2").tofile(tmp_path / f"{number}.bin")
    tokens = open_tokens(tmp_path)
    cells = Cells(tokens._repr_html_())
    assert cells.other == ["TokenCorpus: 1,266 tokens of uint16, raw, in 12 files", "and 2 files more"]
    assert cells.rows[:2] == [["file", "tokens", "mode"], [str(tmp_path / "0.bin"), "100", "shared"]]
    assert len(cells.rows) == 11


def test_a_corpus_tells_its_documents(tmp_path):
    write_tokens(tmp_path / "packed", [np.arange(3), np.arange(5)], dtype="u2", format="megatron")
    title = Cells(open_tokens(tmp_path / "packed.idx")._repr_html_()).other[0]
    assert title == "TokenCorpus: 8 tokens of uint16, megatron, 2 documents, in 1 file"
