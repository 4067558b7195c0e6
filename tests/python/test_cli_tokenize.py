"""``pagestream tokenize``: text files, JSON lines and Parquet to token files."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from pagestream import open_tokens
from pagestream.cli import _texts
from pagestream.cli._app import app
from pagestream.cli._texts import Part, documents, parts_of

from support.process import until

GOOD, BAD, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
END = "<|endoftext|>"
STORIES = ["a cat sat", "on a mat", "", "the dog: ran — far", "a a a"]


def tokenize(*arguments):
    return CliRunner().invoke(app, ["tokenize", *map(str, arguments)])


@pytest.fixture
def tokenizer(tmp_path):
    """One token for each byte, from 0 on, and at last the end of a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.add_special_tokens([END])
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def expected(tokenizer, texts, ends=True):
    loaded = Tokenizer.from_file(str(tokenizer))
    end = [loaded.token_to_id(END)] if ends else []
    return [token for text in texts for token in [*loaded.encode(text).ids, *end]]


def json_lines(path, texts, field="text"):
    path.write_text(
        "".join(json.dumps({"id": number, field: text}) + "\n" for number, text in enumerate(texts))
    )
    return path


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("format", ["raw", "npy", "llmc", "megatron"])
def test_json_lines(tmp_path, tokenizer, format, processes):
    paths = [json_lines(tmp_path / f"{number}.jsonl", STORIES) for number in range(2)]
    out = tmp_path / "train"
    found = tokenize(
        *paths,
        out,
        "--tokenizer",
        tokenizer,
        "--end-token",
        END,
        "--format",
        format,
        "--processes",
        processes,
        "--json",
    )
    assert found.exit_code == GOOD, found.output
    facts = json.loads(found.stdout)
    tokens = open_tokens(out)
    assert tokens[:].tolist() == expected(tokenizer, STORIES * 2)
    assert (facts["tokens"], facts["documents"], facts["dtype"]) == (len(tokens), 10, "uint16")
    if format == "megatron":
        assert [len(document) for document in tokens.documents] == [
            len(expected(tokenizer, [text])) for text in STORIES * 2
        ]
    assert sorted(path.name for path in tmp_path.iterdir() if "train" in path.name) in (
        ["train"],
        ["train.bin", "train.idx"],
    )


def test_text_files_are_documents_or_lines(tmp_path, tokenizer):
    path = tmp_path / "book.txt"
    path.write_text("one\n\ntwo three\n")
    for options, texts in ((), ["one\n\ntwo three\n"]), (("--lines",), ["one", "two three"]):
        found = tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer, "--end-token", END, *options)
        assert found.exit_code == GOOD, found.output
        assert open_tokens(tmp_path / "out.bin")[:].tolist() == expected(tokenizer, texts)
    found = tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer)
    assert open_tokens(tmp_path / "out.bin")[:].tolist() == expected(
        tokenizer, [path.read_text()], ends=False
    )


def test_parquet(tmp_path, tokenizer):
    parquet.write_table(pa.table({"story": STORIES}), tmp_path / "stories.parquet", row_group_size=2)
    found = tokenize(
        tmp_path / "stories.parquet",
        tmp_path / "out.bin",
        "--tokenizer",
        tokenizer,
        "--end-token",
        END,
        "--field",
        "story",
    )
    assert found.exit_code == GOOD, found.output
    assert open_tokens(tmp_path / "out.bin")[:].tolist() == expected(tokenizer, STORIES)
    found = tokenize(tmp_path / "stories.parquet", tmp_path / "out.bin", "--tokenizer", tokenizer)
    assert found.exit_code == BAD
    assert "no column 'text'; found story" in found.stderr


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), max_size=12), st.integers(1, 40))
def test_each_line_is_in_one_part(tmp_path_factory, texts, part_bytes):
    path = json_lines(tmp_path_factory.mktemp("lines") / "texts.jsonl", texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_texts, "PART_BYTES", part_bytes)
        parts = parts_of(str(path), "text", lines=False)
    assert [text for part in parts for text in documents(part)] == texts
    assert sum(part.nbytes for part in parts) == path.stat().st_size


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"text": "a"}\n{"text": 7}\n', "the line at byte 14 has no text in the field 'text'"),
        (b'{"text": "a"}\n[]\n', "the line at byte 14 has no text"),
        (b'{"text": "a"}\n{"text": \n', "the line at byte 14 is no JSON"),
        (b'{"text": "\xff"}\n', "byte 10 is not UTF-8"),
    ],
)
def test_bad_lines(tmp_path, tokenizer, content, told):
    (tmp_path / "bad.jsonl").write_bytes(content)
    found = tokenize(tmp_path / "bad.jsonl", tmp_path / "out.bin", "--tokenizer", tokenizer, "--processes", 1)
    assert found.exit_code == BAD
    assert told in found.stderr
    assert str(tmp_path / "bad.jsonl") in found.stderr
    assert not (tmp_path / "out.bin").exists()


def test_wrong_use(tmp_path, tokenizer):
    path = json_lines(tmp_path / "texts.jsonl", STORIES)
    out = tmp_path / "out.bin"
    for arguments, told in (
        ((out, "--tokenizer", tokenizer), "at last, the token file"),
        ((tmp_path / "nothing.jsonl", out, "--tokenizer", tokenizer), os.strerror(2)),
        ((path, out, "--tokenizer", tmp_path / "nothing.json"), "no such tokenizer"),
        ((path, out, "--tokenizer", path), "not a tokenizer.json"),
        ((path, out, "--tokenizer", tokenizer, "--end-token", "<nope>"), "no token '<nope>'"),
        (
            (path, out, "--tokenizer", tokenizer, "--dtype", "uint8", "--end-token", END),
            "does not fit in uint8",
        ),
        ((path, out), "--tokenizer"),
    ):
        found = tokenize(*arguments)
        assert found.exit_code == WRONG_USE, found.output
        assert told in found.stderr


def test_what_is_made_is_not_made_again(tmp_path, tokenizer):
    """An interruption leaves the parts; another text, or another tokenizer, makes them anew."""
    paths = [json_lines(tmp_path / f"{number}.jsonl", STORIES) for number in range(3)]
    bad = tmp_path / "3.jsonl"
    bad.write_text("no JSON\n")
    command = (*paths, bad, tmp_path / "out.bin", "--tokenizer", tokenizer, "--processes", 1, "--json")
    assert tokenize(*command).exit_code == BAD
    json_lines(bad, STORIES)
    # The bad file is another one now.
    found = json.loads(tokenize(*command).stdout)
    assert (found["parts"], found["parts_made_before"]) == (4, 3)
    assert open_tokens(tmp_path / "out.bin")[:].tolist() == expected(tokenizer, STORIES * 4, ends=False)
    assert not (tmp_path / "out.bin.parts").exists()
    assert json.loads(tokenize(*command).stdout)["parts_made_before"] == 0


@pytest.mark.parametrize(
    ("processes", "seconds"), [(1, 1), (2, 1), (2, 0)], ids=["one", "two", "two that begin"]
)
def test_ctrl_c(tmp_path, tokenizer, processes, seconds):
    """It ends at once with all processes, and leaves no file with half of the tokens."""
    path = json_lines(tmp_path / "texts.jsonl", ["word " * 1000] * 20_000)

    def made():
        return len(list((tmp_path / "out.bin.parts").glob("*.lengths")))

    command = [
        sys.executable,
        "-m",
        "pagestream",
        "tokenize",
        path,
        tmp_path / "out.bin",
        "--tokenizer",
        tokenizer,
        "--processes",
        processes,
    ]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        # One more: Python's own, which looks after resources.
        assert until(lambda: len(children.read_text().split()) > processes)
        time.sleep(seconds)
        before = made()
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(60) == INTERRUPTED
        assert running.stderr.read() == b""
    assert made() == before, "what was begun or queued is not waited for"
    assert not (tmp_path / "out.bin").exists()


def test_ctrl_c_while_parts_are_queued_waits_for_none(tmp_path, tokenizer, monkeypatch):
    path = json_lines(tmp_path / "texts.jsonl", STORIES)
    submit = ProcessPoolExecutor.submit

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)  # it is blocked
        return submit(*arguments)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
    assert tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer).exit_code == INTERRUPTED
    assert not list((tmp_path / "out.bin.parts").glob("*.lengths"))


def test_a_line_that_spans_parts(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"aaaa\nbb\ncccccccc\n")
    for cut in range(1, path.stat().st_size):
        parts = [
            Part(str(path), "lines", *bounds, "text", 0) for bounds in ((0, cut), (cut, path.stat().st_size))
        ]
        assert [text for part in parts for text in documents(part)] == ["aaaa", "bb", "cccccccc"]


def test_large_vocabularies_take_larger_tokens(tmp_path):
    words = {f"w{number}": number for number in range(70_000)}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("w1 w69999")
    found = tokenize(
        tmp_path / "text.txt", tmp_path / "out.bin", "--tokenizer", tmp_path / "tokenizer.json", "--json"
    )
    assert json.loads(found.stdout)["dtype"] == "uint32"
    assert np.array_equal(open_tokens(tmp_path / "out.bin", dtype="uint32")[:], [1, 69_999])
