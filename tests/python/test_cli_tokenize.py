"""``pagestream tokenize``: text files, JSON lines and Parquet to token files."""

import contextlib
import errno
import fcntl
import gzip
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import types
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from typer.testing import CliRunner

from pagestream import open_tokens
from pagestream.cli import _encoding, _parts_folder, _texts, _tokenizer
from pagestream.cli._app import app
from pagestream.cli._encoding import Job, encode_part
from pagestream.cli._stamps import Stamp
from pagestream.cli._texts import Part, documents, parts_of
from pagestream.cli._tokenizer import cuts_between_words, pieces
from pagestream.cli._tokenizer_path import tokenizer_path
from pagestream.errors import FileChangedError, FormatError

from support import real
from support.process import until

pytestmark = pytest.mark.slow

GOOD, BAD, WRONG_USE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
END = "<|endoftext|>"
STORIES = ["a cat sat", "on a mat", "", "the dog: ran — far", "a a a"]


def tokenize(*arguments):
    return CliRunner().invoke(app, ["tokenize", *map(str, arguments)])


@pytest.fixture
def tokenizer(tmp_path):
    """Makes a tokenizer with one token for each byte, numbered from 0, and an end token after them."""
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


def job_of(tokenizer, folder):
    _, sha256 = _tokenizer.load(str(tokenizer))
    return Job(str(tokenizer), sha256, "uint16", None, str(folder))


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


def test_the_message_names_the_files_that_were_written(tmp_path, tokenizer):
    path = tmp_path / "book.txt"
    path.write_text("one")
    for name, *options in (("a.bin",), ("h.npy", "--format", "megatron"), ("m.idx",)):
        found = tokenize(path, tmp_path / name, "--tokenizer", tokenizer, *options)
        named = "".join(found.stdout.split()).partition(":")[0].replace("and", " ").split(" ")
        written = {each.name for each in tmp_path.iterdir()} - {"book.txt", "tokenizer.json"}
        assert {os.path.basename(each) for each in named} == written
        for each in written:
            os.remove(tmp_path / each)


def test_an_unknown_format_is_told_in_plain_words(tmp_path):
    found = tokenize(tmp_path / "a", tmp_path / "b", "--tokenizer", "x", "--format", "nanogpt")
    assert found.exit_code == 2
    assert "'nanogpt' is not one of" in found.output
    assert "Value error" not in found.output


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


@settings(max_examples=200)
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
        (b'{"text": "a"}\n{"text": \n', "the line at byte 14 is not JSON"),
        (
            b'{"text": "a"}\n' + b"[" * 100_000 + b"\n",
            "the line at byte 14 is JSON that is nested too deeply",
        ),
        (b'{"text": "a"}\n{"text": ' + b"1" * 5000 + b"}\n", "the line at byte 14 is not JSON"),
        (
            b'{"text": "a"}\n{"text": "ab\\ud800"}\n',
            r"the line at byte 14 has half of a surrogate pair, \ud800",
        ),
        (b'{"text": "\xff"}\n', "byte 10 is not UTF-8"),
    ],
)
def test_bad_lines(tmp_path, tokenizer, content, told):
    (tmp_path / "bad.jsonl").write_bytes(content)
    found = tokenize(tmp_path / "bad.jsonl", tmp_path / "out.bin", "--tokenizer", tokenizer, "--processes", 1)
    assert found.exit_code == BAD
    assert told in found.stderr
    assert str(tmp_path / "bad.jsonl") in found.stderr
    assert found.stderr.count("\n") == 1
    assert not (tmp_path / "out.bin").exists()
    assert not (tmp_path / "out.bin.parts").exists(), "no part is done"


def test_wrong_use(tmp_path, tokenizer):
    path = json_lines(tmp_path / "texts.jsonl", STORIES)
    out = tmp_path / "out.bin"
    for arguments, told in (
        ((out, "--tokenizer", tokenizer), "then the token file to write"),
        ((tmp_path / "nothing.jsonl", out, "--tokenizer", tokenizer), os.strerror(2)),
        ((path, out, "--tokenizer", tmp_path / "nothing.json"), "no such tokenizer"),
        ((path, out, "--tokenizer", path), "not a tokenizer.json"),
        ((path, out, "--tokenizer", tokenizer, "--end-token", "<nope>"), "no token '<nope>'"),
        (
            (path, out, "--tokenizer", tokenizer, "--dtype", "uint8", "--end-token", END),
            "the vocabulary goes up to 256, which does not fit in uint8",
        ),
        (
            (path, out, "--tokenizer", tokenizer, "--dtype", "foo"),
            "--dtype foo: tokens of the format raw are of type uint8",
        ),
        (
            (path, out, "--tokenizer", tokenizer, "--format", "llmc", "--dtype", "int64"),
            "--dtype int64: tokens of the format llmc are of type uint16, uint32",
        ),
        ((path, tmp_path / "none" / "x.bin", "--tokenizer", tokenizer), "no such folder"),
        ((path, f"{tmp_path}/none/", "--tokenizer", tokenizer), "no such folder"),
        ((path, "/dev/null", "--tokenizer", tokenizer), "not to a device"),
        ((path, tmp_path, "--tokenizer", tokenizer), "this is a directory"),
        ((tmp_path, out, "--tokenizer", tokenizer), "a directory; name the files in it"),
        ((path, out), "--tokenizer"),
    ):
        found = tokenize(*arguments)
        assert found.exit_code == WRONG_USE, found.output
        assert told in found.stderr
        # The command finds all of these errors before it writes anything.
        assert sorted(made.name for made in tmp_path.iterdir()) == ["texts.jsonl", "tokenizer.json"]


@pytest.mark.parametrize(
    ("sources", "out", "told"),
    [
        (["1.jsonl"], "2.jsonl", "the last argument is the token file to write"),
        (["1.txt"], "new.md", "the last argument is the token file to write"),
        (["1.log"], "new.log", "the last argument is the token file to write"),
        (["1.txt"], "2", "it is text"),
        (["1.txt"], "2.dat", "its suffix is not that of a token file"),
        (["1.txt", "2"], "link.bin", "which the tokens would replace"),
        (["1.txt", "2"], "./2", "which the tokens would replace"),
        (["1.txt", "x.bin"], "x.idx", "which the tokens would replace"),
    ],
)
def test_only_token_files_are_replaced(tmp_path, tokenizer, sources, out, told):
    for name in ("1.jsonl", "2.jsonl"):
        json_lines(tmp_path / name, STORIES)
    for name in ("1.txt", "1.log", "2", "2.dat", "x.bin"):
        (tmp_path / name).write_text("a text — of someone\n" * 9)
    (tmp_path / "link.bin").hardlink_to(tmp_path / "2")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    found = tokenize(*(tmp_path / name for name in sources), f"{tmp_path}/{out}", "--tokenizer", tokenizer)
    assert found.exit_code == WRONG_USE, found.output
    assert told in found.stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("out", ["train", "train.bin", "train.npy", "train.idx", "train.tokens"])
def test_a_token_file_is_replaced_and_its_suffix_is_its_format(tmp_path, tokenizer, out):
    path = json_lines(tmp_path / "texts.jsonl", STORIES)
    for end in (), ("--end-token", END):
        assert tokenize(path, tmp_path / out, "--tokenizer", tokenizer, *end).exit_code == GOOD
    assert open_tokens(tmp_path / out)[:].tolist() == expected(tokenizer, STORIES)
    head = (tmp_path / out).read_bytes()[:6]
    assert (head == b"\x93NUMPY", head == b"MMIDID") == (out == "train.npy", out == "train.idx")


@pytest.mark.parametrize("name", ["a.bz2", "a.parquet.xz", "a.parquet.gz"])
def test_other_compressed_files_are_refused_by_name(tmp_path, tokenizer, name):
    (tmp_path / name).write_bytes(b"\x1f\x8b\x08")
    found = tokenize(tmp_path / name, tmp_path / "out.bin", "--tokenizer", tokenizer)
    assert found.exit_code == WRONG_USE
    told = "a compressed Parquet file; unpack it" if ".gz" in name else "of compressed files .gz and .zst are"
    assert f"{tmp_path / name}: {told}" in found.stderr


def test_compressed_texts(tmp_path, tokenizer):
    """Two gzip members, two Zstandard frames and plain texts in one run."""
    plain = json_lines(tmp_path / "a.jsonl", STORIES)
    half = plain.stat().st_size // 2
    first, second = plain.read_bytes()[:half], plain.read_bytes()[half:]
    texts = [plain, tmp_path / "b.JSONL.gz", tmp_path / "c.txt.gz"]
    texts[1].write_bytes(gzip.compress(first) + gzip.compress(second) + bytes(512))
    texts[2].write_bytes(gzip.compress(b"all of one text\n"))
    contents = [*STORIES, *STORIES, "all of one text\n"]
    if importlib.util.find_spec("zstandard"):
        import zstandard

        texts.append(tmp_path / "d.jsonl.zst")
        texts[3].write_bytes(zstandard.compress(first) + zstandard.compress(second))
        contents += STORIES
    out = tmp_path / "train.bin"
    found = tokenize(*texts, out, "--tokenizer", tokenizer, "--end-token", END, "--json")
    assert found.exit_code == GOOD, found.output
    assert open_tokens(out)[:].tolist() == expected(tokenizer, contents)
    assert json.loads(found.stdout)["parts"] == len(texts)
    if len(texts) == 3:
        real.missing("the package zstandard")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_damaged_compressed_text(tmp_path, name, monkeypatch):
    """A truncated file, a file with trailing bytes, and a file of another kind."""
    if name.endswith(".zst"):
        zlib_as_zstandard(monkeypatch)
    path = tmp_path / name
    whole = (gzip if name.endswith(".gz") else zlib).compress(b'{"text": "a"}\n' * 999)
    path.write_bytes(whole * 3)
    [part] = parts_of(str(path), "text", lines=False)
    assert list(documents(part)) == ["a"] * 999 * 3
    for content in (whole[:-1], whole + whole[:-9], whole + b"no frame", b"plain text"):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=f"{path}: not a (gzip|Zstandard) file, or a damaged one: "):
            list(documents(part))
    path.write_bytes(b"")
    assert list(documents(part)) == []
    path.unlink()
    with pytest.raises(FileNotFoundError):
        list(documents(part))


def zlib_as_zstandard(monkeypatch):
    """Puts zlib in place of Python 3.14's Zstandard module. Their objects have the same methods."""
    module = types.ModuleType("compression.zstd")
    module.ZstdDecompressor = zlib.decompressobj
    monkeypatch.setitem(sys.modules, "compression", types.ModuleType("compression"))
    monkeypatch.setitem(sys.modules, "compression.zstd", module)


def test_lines_of_a_compressed_text_come_before_its_end_is_read(tmp_path, monkeypatch):
    zlib_as_zstandard(monkeypatch)
    path = tmp_path / "a.txt.zst"
    noise = np.random.default_rng(0).bytes(1 << 20).hex().encode()
    path.write_bytes(zlib.compress(b"first\n") + zlib.compress(noise, 0)[:-1])
    lines = documents(parts_of(str(path), "text", lines=True)[0])
    assert next(lines) == "first"
    with pytest.raises(FormatError, match="ends within a frame"):
        next(lines)


def test_without_zstandard_a_line_says_what_to_install(tmp_path, tokenizer, monkeypatch):
    for module in ("zstandard", "compression", "compression.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.txt.zst").touch()
    found = tokenize(tmp_path / "a.txt.zst", tmp_path / "out.bin", "--tokenizer", tokenizer)
    told = f"pagestream: {tmp_path}/a.txt.zst: Zstandard files are read with zstandard: pip install "
    assert (found.exit_code, found.stderr) == (WRONG_USE, f"{told}'pagestream[tokenize]'\n")


class TestTokenizerPath:
    @pytest.fixture
    def cache(self, tmp_path, monkeypatch):
        """A cache with two models. The first has two snapshots, and its main is the second one."""
        for name in ("HF_HUB_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.chdir(tmp_path)
        for model, names in (("org--model", ("1", "2")), ("gpt2", ("3",))):
            for name in names:
                snapshot = tmp_path / "hf/hub" / f"models--{model}" / "snapshots" / name
                snapshot.mkdir(parents=True)
                (snapshot / "tokenizer.json").touch()
        (tmp_path / "hf/hub/models--org--model/refs").mkdir()
        (tmp_path / "hf/hub/models--org--model/refs/main").write_text("2")
        return tmp_path / "hf/hub"

    def test_of_the_cache(self, cache, monkeypatch):
        main = str(cache / "models--org--model/snapshots/2/tokenizer.json")
        assert tokenizer_path("org/model") == main
        assert tokenizer_path("gpt2") == str(cache / "models--gpt2/snapshots/3/tokenizer.json")
        assert tokenizer_path(str(cache / "models--org--model")) == main
        os.remove(main)
        with pytest.raises(FileNotFoundError, match=r"the folder has no tokenizer.json; transformers writes"):
            tokenizer_path("org/model")
        os.remove(cache / "models--org--model/refs/main")
        with pytest.raises(FileNotFoundError, match="no snapshot of main among 1, 2; name the folder"):
            tokenizer_path("org/model")
        for variables, expected in (
            ({"HF_HUB_CACHE": "/c"}, "/c"),
            ({"HF_HOME": "~/h"}, os.path.expanduser("~/h/hub")),
            ({"HF_HOME": "", "XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
            ({"HF_HOME": ""}, os.path.expanduser("~/.cache/huggingface/hub")),
        ):
            with monkeypatch.context() as patched:
                for name, value in variables.items():
                    patched.setenv(name, value)
                with pytest.raises(FileNotFoundError, match=f"or a model in {expected}, such as"):
                    tokenizer_path("no/such")

    def test_paths_take_precedence_over_names(self, cache, tmp_path, tokenizer):
        (tmp_path / "org/model").mkdir(parents=True)
        with pytest.raises(FileNotFoundError, match=r"the folder has no tokenizer.json"):
            tokenizer_path("org/model")
        shutil.copy(tokenizer, tmp_path / "org/model")
        assert tokenizer_path("org/model") == "org/model/tokenizer.json"
        path = json_lines(tmp_path / "texts.jsonl", STORIES)
        found = tokenize(path, tmp_path / "out.bin", "--tokenizer", "org/model")
        assert found.exit_code == GOOD, found.output

    @pytest.mark.parametrize("name", ["../gpt2", "a/b/c", "a b", "hf/hub/none"])
    def test_other_texts_are_not_names(self, cache, name):
        with pytest.raises(FileNotFoundError, match="no such tokenizer; expected a tokenizer"):
            tokenizer_path(name)


def test_pipes_are_refused(tmp_path, tokenizer):
    os.mkfifo(tmp_path / "pipe")
    for path in tmp_path / "pipe", "/dev/zero":
        found = tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer)
        assert found.exit_code == WRONG_USE
        assert f"{path}: not a regular file, but a pipe or a device; write the text to a file" in found.stderr


def test_bad_parquet(tmp_path, tokenizer):
    path = tmp_path / "stories.parquet"
    path.write_text("not Parquet at all")
    found = tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer)
    assert (found.exit_code, found.stderr.count("\n")) == (BAD, 1)
    assert f"{path}: not a Parquet file, or a damaged one" in found.stderr
    # These are the pages of the only column.
    parquet.write_table(pa.table({"text": ["a story of nobody"] * 999}), path, compression="gzip")
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    found = tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer)
    assert (found.exit_code, found.stderr.count("\n")) == (BAD, 1)
    assert f"{path}: not a Parquet file, or a damaged one" in found.stderr


def test_rows_have_numbers_in_their_group(tmp_path):
    path = tmp_path / "stories.parquet"
    parquet.write_table(pa.table({"text": ["a"] * 700 + [None]}), path, row_group_size=400)
    first, second = parts_of(str(path), "text", lines=False)
    assert len(list(documents(first))) == 400
    with pytest.raises(FormatError, match="row 300 of row group 1 has no text"):
        list(documents(second))


def test_truncation_and_padding_of_the_tokenizer_are_left_out(tmp_path, tokenizer):
    before = expected(tokenizer, STORIES)
    loaded = Tokenizer.from_file(str(tokenizer))
    loaded.enable_truncation(3)
    loaded.enable_padding(length=5)
    loaded.save(str(tokenizer))
    path = json_lines(tmp_path / "texts.jsonl", STORIES)
    found = tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer, "--end-token", END)
    assert found.exit_code == GOOD, found.output
    assert open_tokens(tmp_path / "out.bin")[:].tolist() == before


def test_a_text_without_tokens(tmp_path):
    made = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    made.save(str(tmp_path / "tokenizer.json"))
    path = json_lines(tmp_path / "texts.jsonl", ["b"])
    found = tokenize(path, tmp_path / "out.bin", "--tokenizer", tmp_path / "tokenizer.json")
    assert (found.exit_code, found.stderr.count("\n")) == (WRONG_USE, 1)
    assert f"tokenizer.json: a text of {path} cannot be encoded" in found.stderr


def test_finished_parts_are_not_made_again(tmp_path, tokenizer):
    """An interrupted run leaves its parts. Another text or another tokenizer makes new ones."""
    paths = [json_lines(tmp_path / f"{number}.jsonl", STORIES) for number in range(3)]
    bad = tmp_path / "3.jsonl"
    bad.write_text("no JSON\n")
    kept = f"pagestream: {tmp_path / 'out.bin.parts'} keeps 3 of 4 parts; the same command resumes there\n"
    command = (*paths, bad, tmp_path / "out.bin", "--tokenizer", tokenizer, "--processes", 1, "--json")
    found = tokenize(*command)
    assert found.exit_code == BAD
    assert found.stderr.startswith(kept)
    assert sorted(path.suffix for path in (tmp_path / "out.bin.parts").iterdir()) == [
        *[".lengths"] * 3,
        *[".tokens"] * 3,
    ]
    json_lines(bad, STORIES)
    # The bad file has now been replaced.
    found = json.loads(tokenize(*command).stdout)
    assert (found["parts"], found["parts_made_before"]) == (4, 3)
    assert open_tokens(tmp_path / "out.bin")[:].tolist() == expected(tokenizer, STORIES * 4, ends=False)
    assert not (tmp_path / "out.bin.parts").exists()
    assert json.loads(tokenize(*command).stdout)["parts_made_before"] == 0


def replace_text(path, content, times_of=None):
    """Replaces a text with another file. The new file gets the times of `times_of`."""
    other = path.with_suffix(".new")
    other.write_text(content)
    if times_of is not None:
        os.utime(other, ns=(times_of.st_atime_ns, times_of.st_mtime_ns))
    other.replace(path)


CHANGES = {
    "replaced": (
        lambda path: replace_text(path, "dog\n" * 9, path.stat()),
        r"found inode \d+, expected \d+;",
    ),
    "longer": (lambda path: path.write_text("dog\n" * 10), r"found 40 bytes, expected 36, found a modif"),
    "written": (
        lambda path: os.utime(path, ns=(0, 10**18)),
        r"found a modification at .*\.0{9}, expected .*;",
    ),
    "bad": (lambda path: path.write_bytes(b"\xff\n" * 18), r"found a modification at "),
    "removed": (lambda path: path.unlink(), "it was removed;"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_text_is_not_encoded(tmp_path, tokenizer, change):
    """A changed text is not encoded, even if the change would cause an error of its own."""
    path = tmp_path / "texts.txt"
    path.write_text("cat\n" * 9)
    parts = tmp_path / "parts"
    parts.mkdir()
    job = job_of(tokenizer, parts)
    (part,) = parts_of(str(path), "text", lines=True)
    make_change, told = CHANGES[change]
    make_change(path)
    with pytest.raises(FileChangedError, match=told) as caught:
        encode_part(part, str(parts / "part"), job)
    assert caught.value.filename == str(path)
    assert "run the same command again" in str(caught.value)
    assert not list(parts.iterdir())


def test_a_text_replaced_between_two_parts(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(_texts, "PART_BYTES", 8)
    path = tmp_path / "text.txt"
    path.write_text("the cat\n" * 3)
    as_completed = _encoding.as_completed

    def replace_after_first(futures):
        completed = as_completed(futures)
        yield next(completed)
        replace_text(path, "two dog\n" * 3)
        yield from completed

    monkeypatch.setattr(_encoding, "as_completed", replace_after_first)
    command = (path, tmp_path / "out.bin", "--tokenizer", tokenizer, "--lines", "--processes", 1)
    found = tokenize(*command)
    assert found.exit_code == BAD, found.output
    assert f"pagestream: {path}: the file changed during the run: found inode " in found.stderr
    assert found.stderr.count("\n") == 1, "no part can be used again"
    assert not (tmp_path / "out.bin").exists()
    assert not (tmp_path / "out.bin.parts").exists()


@pytest.mark.parametrize("lines", ["the cat\n", ""])
def test_a_text_replaced_after_its_last_part(tmp_path, tokenizer, monkeypatch, lines):
    """The parts of the old text are not reused, even if the new text has the same size and times."""
    path, other = tmp_path / "text.txt", tmp_path / "other.txt"
    path.write_text(lines)
    other.write_text("a mouse\n")

    def encode_and_replace(*arguments):
        encoded = _encoding.encode(*arguments)
        replace_text(path, lines.replace("the cat", "two dog"), path.stat())
        return encoded

    command = (other, path, tmp_path / "out.bin", "--tokenizer", tokenizer, "--lines", "--json")
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["pagestream.cli.tokenize"], "encode", encode_and_replace)
        found = tokenize(*command)
    assert found.exit_code == BAD, found.output
    kept, error = found.stderr.splitlines()
    total = "2 parts" if lines else "1 part"
    assert kept.endswith(f"out.bin.parts keeps 1 of {total}; the same command resumes there")
    assert error.startswith(f"pagestream: {path}: the file changed during the run: found inode ")
    assert not (tmp_path / "out.bin").exists()
    assert json.loads(tokenize(*command).stdout)["parts_made_before"] == 1
    texts = ["a mouse", *["two dog"] * bool(lines)]
    assert open_tokens(tmp_path / "out.bin")[:].tolist() == expected(tokenizer, texts, ends=False)
    assert not (tmp_path / "out.bin.parts").exists()


def test_a_tokenizer_that_changes_before_a_process_has_loaded_it(tmp_path, tokenizer, monkeypatch):
    path = json_lines(tmp_path / "texts.jsonl", STORIES)

    def replace_and_encode(*arguments):
        GPT_2.save(str(tokenizer))
        return _encoding.encode(*arguments)

    command = (path, tmp_path / "out.bin", "--tokenizer", tokenizer)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["pagestream.cli.tokenize"], "encode", replace_and_encode)
        found = tokenize(*command)
    assert found.exit_code == BAD, found.output
    assert f"{tokenizer}: the tokenizer changed during the run: found SHA-256 " in found.stderr
    assert not (tmp_path / "out.bin").exists()
    assert tokenize(*command).exit_code == GOOD
    assert open_tokens(tmp_path / "out.bin")[:].tolist() == expected(tokenizer, STORIES, ends=False)


def made(tmp_path):
    return len(list((tmp_path / "out.bin.parts").glob("*.lengths")))


def test_two_runs_with_one_target(tmp_path, tokenizer, monkeypatch):
    """The second run ends at once and takes nothing from the first."""
    path, out = json_lines(tmp_path / "texts.jsonl", STORIES), tmp_path / "out.bin"
    seconds = []

    def encode_between_second_runs(*arguments):
        patch.undo()
        seconds.append(tokenize(path, out, "--tokenizer", tokenizer))
        encoded = _encoding.encode(*arguments)
        seconds.append(tokenize(path, out, "--tokenizer", tokenizer))
        return encoded

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["pagestream.cli.tokenize"], "encode", encode_between_second_runs)
        first = tokenize(path, out, "--tokenizer", tokenizer)
    assert first.exit_code == GOOD, first.output
    told = (
        f"pagestream: {out}: process {os.getpid()} writes this token file now, and holds "
        f"{out}.parts/{_parts_folder._LOCK}; wait until it ends, or name another token file\n"
    )
    assert [(second.exit_code, second.stderr) for second in seconds] == [(WRONG_USE, told)] * 2
    assert open_tokens(out)[:].tolist() == expected(tokenizer, STORIES, ends=False)
    assert not (tmp_path / "out.bin.parts").exists()


@pytest.mark.parametrize(
    ("content", "owner"), [(b"", "another process"), (b"12 elsewhere\n", "process 12 on elsewhere")]
)
def test_the_holder_of_the_lock_is_named_if_known(tmp_path, tokenizer, content, owner):
    path = json_lines(tmp_path / "texts.jsonl", STORIES)
    lock = tmp_path / "out.bin.parts" / _parts_folder._LOCK
    lock.parent.mkdir()
    lock.write_bytes(content)
    command = (path, tmp_path / "out.bin", "--tokenizer", tokenizer)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = tokenize(*command)
        assert (found.exit_code, lock.read_bytes()) == (WRONG_USE, content)
        assert f"{tmp_path}/out.bin: {owner} writes this token file now" in found.stderr
    assert tokenize(*command).exit_code == GOOD
    assert not lock.parent.exists()


def test_a_lock_file_removed_by_the_previous_run(tmp_path, tokenizer, monkeypatch):
    """The previous run may remove the file and its folder after this run has made or opened them."""
    path = json_lines(tmp_path / "texts.jsonl", STORIES)
    folder = tmp_path / "out.bin.parts"
    removed = []

    def removed_after(call):
        def called(*arguments, **options):
            result = call(*arguments, **options)
            if call not in removed:
                removed.append(call)
                shutil.rmtree(folder)
            return result

        return called

    for module, name in ((os, "makedirs"), (fcntl, "flock")):
        monkeypatch.setattr(module, name, removed_after(getattr(module, name)))
    assert tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer).exit_code == GOOD
    assert len(removed) == 2
    assert not folder.exists()


def test_a_file_system_without_locks(tmp_path, tokenizer, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = json_lines(tmp_path / "texts.jsonl", STORIES)
    assert tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer).exit_code == GOOD
    assert not (tmp_path / "out.bin.parts").exists()


def started(tmp_path, tokenizer, processes, path=None, **options):
    """Starts a run over ten parts, or over the given file."""
    path = path or json_lines(tmp_path / "texts.jsonl", ["word " * 1000] * 8000)
    command = [sys.executable, "-m", "pagestream", "tokenize", path, tmp_path / "out.bin"]
    command += ["--tokenizer", tokenizer, "--processes", processes]
    pipe = subprocess.PIPE
    return subprocess.Popen(list(map(str, command)), stdout=pipe, stderr=pipe, text=True, **options)


def children_of(running):
    return Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()


def begun(running):
    """Returns the children that already run their own program. An earlier signal may be lost."""

    def command_of(process):
        with contextlib.suppress(OSError):
            return Path(f"/proc/{process}/cmdline").read_bytes()
        return b""

    own = command_of(running.pid)
    return [child for child in children_of(running) if command_of(child) not in (own, b"")]


def are_gone(processes):
    def state(process):
        try:
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "gone"

    return until(lambda: all(state(process) in ("gone", "Z") for process in processes))


def told(tmp_path, done):
    """Returns the message of an interrupted run."""
    if not done:
        return ""
    total = len(parts_of(str(tmp_path / "texts.jsonl"), "text", lines=False))
    folder = tmp_path / "out.bin.parts"
    return f"pagestream: {folder} keeps {done} of {total} parts; the same command resumes there\n"


def test_an_interruption_leaves_no_thread_of_the_pool(tmp_path, tokenizer, monkeypatch):
    """At exit, the interpreter would write to the thread's pipe while the thread closes it."""

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_encoding, "as_completed", interrupted)
    path = str(json_lines(tmp_path / "texts.jsonl", ["word " * 1000] * 800))
    job = job_of(tokenizer, tmp_path)
    parts = parts_of(path, "text", lines=False)
    before = threading.enumerate()
    with pytest.raises(KeyboardInterrupt):
        _encoding.encode(parts, _encoding.names_of(parts, job), job, 1)
    assert threading.enumerate() == before
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("processes", "parts"), [(1, 1), (2, 1), (2, 0)], ids=["one", "two", "two that begin"]
)
def test_an_interruption(tmp_path, tokenizer, processes, parts, number):
    """The run ends at once with all of its processes, and leaves no half-written file of tokens."""
    with started(tmp_path, tokenizer, processes, start_new_session=True) as running:
        # There is one more child: Python's resource tracker.
        assert until(lambda: len(begun(running)) > processes)
        assert until(lambda: made(tmp_path) >= parts)
        children = children_of(running)
        os.killpg(running.pid, number)
        assert running.wait() == 128 + number
        done = made(tmp_path)
        # The pipes are closed too.
        assert running.communicate() == ("", told(tmp_path, done))
    assert are_gone(children)
    assert made(tmp_path) == done, "what was begun or queued is not waited for"
    assert (tmp_path / "out.bin.parts").exists() == bool(done)
    assert not (tmp_path / "out.bin").exists()


def test_sigterm_to_the_first_process_alone_ends_all(tmp_path, tokenizer):
    with started(tmp_path, tokenizer, 2) as running:
        assert until(lambda: made(tmp_path) > 0)
        children = children_of(running)
        running.terminate()
        assert running.wait() == TERMINATED
        assert running.communicate() == ("", told(tmp_path, made(tmp_path)))
    assert are_gone(children)


@pytest.mark.parametrize("parts", [0, 1])
def test_processes_end_with_a_killed_parent(tmp_path, tokenizer, parts):
    with started(tmp_path, tokenizer, 2) as running:
        assert until(lambda: len(begun(running)) > 2)
        assert until(lambda: made(tmp_path) >= parts)
        children = children_of(running)
        running.kill()
        # `communicate` returns once no process has the pipes open. Python reports the resources it removed.
        output, _ = running.communicate()
        assert output == ""
    assert are_gone(children)


def test_a_killed_run_is_resumed_at_once(tmp_path, tokenizer):
    """The lock file stays, but its lock is gone. The second part is held back until the run is killed."""
    source = tmp_path / "source"
    source.mkdir()
    json_lines(source / "texts.jsonl", ["word " * 1000] * 1700)
    with real.slow_fuse(source, tmp_path / "mount") as slow:
        path = slow.path / "texts.jsonl"
        slow.gate.hold(_texts.PART_BYTES * 3 // 2)
        with started(tmp_path, tokenizer, 1, path) as running:
            assert until(lambda: made(tmp_path) > 0)
            running.kill()
            slow.gate.open()
            assert running.wait() == -signal.SIGKILL
            assert (tmp_path / "out.bin.parts" / _parts_folder._LOCK).exists()
            found = tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer, "--json")
            assert found.exit_code == GOOD, found.output
            running.communicate()
    facts = json.loads(found.stdout)
    assert (facts["parts_made_before"], facts["parts"]) == (1, 3)


def test_a_killed_process(tmp_path, tokenizer):
    with started(tmp_path, tokenizer, 2) as running:
        assert until(lambda: made(tmp_path) > 0)
        workers = [
            process
            for process in children_of(running)
            if b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes()
        ]
        assert len(workers) == 2
        os.kill(int(workers[0]), signal.SIGKILL)
        assert running.wait() == WRONG_USE
        _, errors = running.communicate()
    assert errors.splitlines() == [
        told(tmp_path, made(tmp_path)).strip(),
        "pagestream: a process that encoded was killed, maybe for want of memory: use fewer --processes",
    ]
    assert are_gone(workers)


def test_ctrl_c_while_parts_are_queued_waits_for_none(tmp_path, tokenizer, monkeypatch):
    path = json_lines(tmp_path / "texts.jsonl", STORIES)
    submit = ProcessPoolExecutor.submit

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)  # the signal is blocked
        return submit(*arguments)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
    assert tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer).exit_code == INTERRUPTED
    assert not list((tmp_path / "out.bin.parts").glob("*.lengths"))


def test_a_line_that_spans_parts(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"aaaa\nbb\ncccccccc\n")
    for cut in range(1, path.stat().st_size):
        stamp = Stamp.of(path.stat())
        parts = [
            Part(str(path), "lines", *bounds, "text", 0, stamp)
            for bounds in ((0, cut), (cut, path.stat().st_size))
        ]
        assert [text for part in parts for text in documents(part)] == ["aaaa", "bb", "cccccccc"]


def save_large_vocabulary(folder):
    """Writes a tokenizer with tokens above 16 bits, and a text with one of these tokens."""
    words = {f"w{number}": number for number in range(70_000)}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    (folder / "text.txt").write_text("w1 w69999")


def test_large_vocabularies_take_larger_tokens(tmp_path):
    save_large_vocabulary(tmp_path)
    found = tokenize(
        tmp_path / "text.txt", tmp_path / "out.bin", "--tokenizer", tmp_path / "tokenizer.json", "--json"
    )
    assert json.loads(found.stdout)["dtype"] == "uint32"
    assert np.array_equal(open_tokens(tmp_path / "out.bin", dtype="uint32")[:], [1, 69_999])


def test_types_fit_the_format(tmp_path):
    save_large_vocabulary(tmp_path)
    arguments = (tmp_path / "text.txt", tmp_path / "out.idx", "--tokenizer", tmp_path / "tokenizer.json")
    # Megatron has no uint32.
    assert json.loads(tokenize(*arguments, "--json").stdout)["dtype"] == "int32"
    assert open_tokens(tmp_path / "out.idx")[:].tolist() == [1, 69_999]
    found = tokenize(*arguments, "--dtype", "uint16")
    assert found.exit_code == WRONG_USE
    assert "the vocabulary goes up to 69999, which does not fit in uint16 (up to 65535)" in found.stderr


def test_foreign_files_in_the_folder_of_parts_stay(tmp_path, tokenizer):
    path = json_lines(tmp_path / "texts.jsonl", STORIES)
    (tmp_path / "out.bin.parts").mkdir()
    (tmp_path / "out.bin.parts" / "part-1.tokens").write_text("of someone")
    assert tokenize(path, tmp_path / "out.bin", "--tokenizer", tokenizer).exit_code == GOOD
    assert [left.name for left in (tmp_path / "out.bin.parts").iterdir()] == ["part-1.tokens"]


def of_words(pre_tokenizer, **parts):
    """Trains a tokenizer on words, on runs of spaces and on runs of line ends."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizer
    for name, part in parts.items():
        setattr(made, name, part)
    texts = ["the cat's on the mat\n\nit'll  sit\n there 1234 times; a-b, a b", "été ça  va?\r\n été"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts * 9, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([END])
    return made


def split_by(pattern):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


GPT_2 = of_words(pre_tokenizers.ByteLevel(add_prefix_space=False))
LLAMA_3, QWEN = (of_words(split_by(pattern), normalizer=normalizers.NFC()) for pattern in _tokenizer._WORDS)


@pytest.mark.parametrize("made", [GPT_2, LLAMA_3, QWEN], ids=["gpt-2", "llama-3", "qwen"])
@settings(max_examples=300)
@given(
    text=st.lists(
        st.sampled_from(
            [
                "the",
                "cat",
                "'s",
                "'ll",
                " ",
                " ",
                " ",
                "\n",
                "\r\n",
                "1234",
                "é",
                "e\u0301",
                "мир",
                "猫。",
                "\n猫",
                "²",
                "\n",
                END,
                ";",
            ]
        )
        | st.text(st.characters(codec="utf-8"), max_size=2),
        max_size=60,
    ).map("".join),
    piece_chars=st.integers(1, 12),
)
def test_pieces_have_the_tokens_of_the_text(made, text, piece_chars):
    assert cuts_between_words(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tokenizer, "PIECE_CHARS", piece_chars)
        cut = list(pieces(text))
    assert "".join(cut) == text
    assert [token for piece in cut for token in made.encode(piece).ids] == made.encode(text).ids


def test_the_pattern_of_llama_3_is_known():
    assert _tokenizer._WORDS[0] == (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def test_texts_are_cut_for_no_other_tokenizer():
    def with_token(**options):
        made = of_words(pre_tokenizers.ByteLevel(add_prefix_space=False))
        made.add_tokens([AddedToken(**options)])
        return made

    assert cuts_between_words(with_token(content="<mask>"))
    for made in (
        with_token(content="<mask>", lstrip=True),
        with_token(content="<mask>", rstrip=True),
        with_token(content="the cat"),
        with_token(content="\n\n"),
        of_words(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        of_words(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        of_words(pre_tokenizers.Whitespace()),
        of_words(split_by(r"\s+|\S+")),
        of_words(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer=normalizers.Prepend("x")),
        Tokenizer(models.BPE()),
    ):
        assert not cuts_between_words(made), made.to_str()


def test_a_text_in_pieces_is_one_document(tmp_path):
    GPT_2.save(str(tmp_path / "tokenizer.json"))
    texts = [" ".join(["the cat sat"] * 100_000), "", "the mat"]
    path = json_lines(tmp_path / "texts.jsonl", texts)
    out = tmp_path / "out.idx"
    found = tokenize(path, out, "--tokenizer", tmp_path / "tokenizer.json", "--end-token", END)
    assert found.exit_code == GOOD, found.output
    whole = [expected(tmp_path / "tokenizer.json", [text]) for text in texts]
    assert [document.tolist() for document in open_tokens(out).documents] == whole


def test_a_large_text_that_cannot_be_cut_is_refused(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(sys.modules["pagestream.cli.tokenize"], "LARGEST_PIECE_CHARS", 10)
    path, out = tmp_path / "book.txt", tmp_path / "out.bin"
    path.write_text("one two\nthree\n")
    found = tokenize(path, out, "--tokenizer", tokenizer)
    assert found.exit_code == WRONG_USE
    assert f"{path}: one document of 14 bytes; at most 10 bytes are encoded" in found.stderr
    assert "use --lines if each line is a document" in found.stderr
    assert not (tmp_path / "out.bin.parts").exists()
    assert tokenize(path, out, "--tokenizer", tokenizer, "--lines").exit_code == GOOD
    GPT_2.save(str(tokenizer))
    assert tokenize(path, out, "--tokenizer", tokenizer).exit_code == GOOD


def test_a_document_without_a_place_to_cut_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_encoding, "LARGEST_PIECE_CHARS", 10)
    path = json_lines(tmp_path / "texts.jsonl", ["a cat", "cats" * 3])
    GPT_2.save(str(tmp_path / "tokenizer.json"))
    job = job_of(tmp_path / "tokenizer.json", tmp_path)
    (part,) = parts_of(str(path), "text", lines=False)
    with pytest.raises(FormatError, match=r"texts.jsonl: a document has 12 characters that cannot be cut"):
        encode_part(part, str(tmp_path / "part"), job)
    assert not (tmp_path / "part.lengths").exists()
