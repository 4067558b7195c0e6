"""Files that users pass as tokens by mistake: refused by name, unless the caller asks for raw tokens."""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import sqlite3
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import safetensors.numpy
import torch
from pyarrow import feather, parquet
from typer.testing import CliRunner

from pagestream import TokenLoader, open_tokens
from pagestream.cli._app import app
from pagestream.errors import FormatError

from support.token_formats import write_megatron

TEXT = "It was the best of times, it was the worst of times,\n" * 40
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 9085698\n"
HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not Found</body></html>\n"
TABLE = pa.table({"tokens": list(range(500))})


def into(write):
    """Returns the bytes that a function writes to a file object."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def zip_of(name):
    def write(file):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(name, b"1234")

    return into(write)


def tar(file):
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("tokens.bin"))


def sqlite():
    database = sqlite3.connect(":memory:")
    database.execute("create table tokens (id integer)")
    return database.serialize()


def lit_gpt(tokens):
    """The format of lit-gpt's `PackedDatasetBuilder`: magic, version, type code, tokens in the chunk."""
    return b"LITPKDS" + struct.pack("<QBQ", 1, 8, tokens.size) + tokens.tobytes()


def modalities(tokens):
    """The format of Modalities' `PackedDataGenerator`: data length, bytes per token, data, documents."""
    data = tokens.tobytes()
    return struct.pack("<QI", len(data), tokens.itemsize) + data + pickle.dumps([(0, len(data))])


TOKENS = np.random.default_rng(0).integers(0, 50257, 1000).astype("<u2")
KINDS = {
    "git-lfs": (LFS_POINTER, "git-LFS pointer; .*git lfs pull"),
    "html": (HTML, "an HTML page"),
    "html with a mark": (b"\xef\xbb\xbf\n <HTML>" + bytes(60), "an HTML page"),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an HTML page"),
    "json": (json.dumps({"text": TEXT}).encode(), "JSON text"),
    "json lines": (b"\n".join(json.dumps({"text": line}).encode() for line in TEXT.split("\n")), "JSON text"),
    "text": (TEXT.encode(), "a text file; tokenize"),
    "text in Chinese": (("这是最好的时代。这是最坏的时代。" * 100).encode(), "a text file"),
    "text in Greek": (("Ήταν τα καλύτερα χρόνια, ήταν τα χειρότερα. " * 100).encode(), "a text file"),
    "ids as text": (" ".join(map(str, TOKENS)).encode(), "a text file"),
    "csv": (b"id,text\n" + b"".join(b"%d,abc\n" % number for number in range(99)), "a text file"),
    **{
        f"pickle {protocol}": (pickle.dumps({"ids": list(range(300))}, protocol), "a Python pickle")
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
    "pickle of an array": (pickle.dumps(TOKENS), "a Python pickle"),
    "torch.save": (into(lambda file: torch.save(torch.zeros(9), file)), "a zip archive"),
    "torch.save, legacy": (
        into(lambda file: torch.save(torch.zeros(9), file, _use_new_zipfile_serialization=False)),
        "a Python pickle",
    ),
    "npz": (into(lambda file: np.savez(file, tokens=TOKENS)), "a zip archive; extract"),
    "zip": (zip_of("a.npy"), "a zip archive"),
    "gzip": (gzip.compress(TOKENS.tobytes(), mtime=0), "a gzip file; decompress"),
    "xz": (lzma.compress(TOKENS.tobytes()), "an xz file; decompress"),
    "bzip2": (bz2.compress(TOKENS.tobytes()), "a bzip2 file; decompress"),
    "zstd": (pa.compress(TOKENS.tobytes(), "zstd", asbytes=True), "a Zstandard file; decompress"),
    "lz4": (pa.compress(TOKENS.tobytes(), "lz4", asbytes=True), "an LZ4 file; decompress"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\4" + TOKENS.tobytes(), "a 7z archive"),
    "tar": (into(tar), "a tar archive; extract"),
    "gguf": (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + bytes(64), "a GGUF file"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "an HDF5 file"),
    "safetensors": (safetensors.numpy.save({"w": np.zeros(99)}), "safetensors file of weights; open it with"),
    "lit-gpt": (lit_gpt(TOKENS), "lit-gpt; export its tokens"),
    "modalities": (modalities(TOKENS), "Modalities .*export its tokens"),
    "parquet": (into(lambda file: parquet.write_table(TABLE, file)), "a Parquet file"),
    "arrow": (into(lambda file: feather.write_feather(TABLE, file)), "an Arrow file"),
    "sqlite": (sqlite(), "an SQLite database"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + bytes(64), "a PDF file"),
    "llm.c evaluation": (np.array([20240522, 1, 4], "<i4").tobytes() + bytes(1024), "llm.c evaluation"),
    "megatron index": (b"MMIDIDX\0\0" + bytes(31), "a Megatron index; rename"),
    "llm.c model": (np.array([20240326, 3], "<i4").tobytes() + bytes(1024), "a model of llm.c"),
    "llm.c debug state": (np.array([20240327, 2], "<i4").tobytes() + bytes(1024), "a debug state of llm.c"),
    "llm.c tokenizer": (np.array([20240328, 2], "<i4").tobytes() + bytes(1024), "a tokenizer of llm.c"),
    "utf-16": (TEXT.encode("utf-16"), "UTF-16 text"),
    "utf-16, big-endian": (b"\xfe\xff" + TEXT.encode("utf-16-be"), "UTF-16 text"),
    "ggml": (b"tjgg" + bytes(64), "a GGML file of llama.cpp"),
    "ggml of whisper": (b"lmgg" + bytes(64), "a GGML file of whisper.cpp"),
    "avro": (b"Obj\x01" + bytes(64), "an Avro file"),
    "matlab": (b"MATLAB 5.0 MAT-file, Platform: GLNXA64" + bytes(100), "a MATLAB file"),
    "elf": (b"\x7fELF\x02\x01\x01" + bytes(64), "a program or a library"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(64), "a PNG image"),
    "fairseq index": (b"TNTIDX\0\0" + bytes(32), "gpt-neox; convert"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["tokens.bin", "tokens"])
def test_other_kinds_of_files_are_refused_by_name(tmp_path, kind, name):
    content, told = KINDS[kind]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FormatError, match=f'(?s){told}.*format="raw"') as caught:
        open_tokens(path)
    assert str(caught.value).startswith(f"{path}: ")
    np.testing.assert_array_equal(
        open_tokens(path, format="raw", dtype="uint8")[:], np.frombuffer(content, "u1"), strict=True
    )


def test_a_token_like_a_byte_order_mark_makes_no_text(tmp_path):
    tokens = np.concatenate([[0xFEFF], TOKENS]).astype("u2")
    tokens.tofile(tmp_path / "t.bin")
    np.testing.assert_array_equal(open_tokens(tmp_path / "t.bin")[:], tokens)


def test_a_link_to_nowhere_in_a_folder_is_no_smaller_corpus(tmp_path):
    for number in (1, 3):
        TOKENS.tofile(tmp_path / f"s{number}.bin")
    (tmp_path / "s2.bin").symlink_to(tmp_path / ".git/annex/objects/s2.bin")
    with pytest.raises(FileNotFoundError, match=r"s2\.bin"):
        open_tokens(tmp_path)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_list_with_both_files_of_a_megatron_pair_is_refused(tmp_path, kind):
    write_megatron(tmp_path / "t", TOKENS, [len(TOKENS)])
    paths = [kind(path) for path in sorted(tmp_path.iterdir())]
    with pytest.raises(ValueError, match=r"t\.idx and .*t\.bin, which are one Megatron pair"):
        open_tokens(paths)
    assert len(open_tokens(paths[:1])) == len(open_tokens(paths[1:])) == len(TOKENS)


def test_commands_warn_of_holes(tmp_path):
    path = tmp_path / "t.npy"
    np.save(path, np.tile(TOKENS, 200))
    for command in ("info", "verify"):
        assert "read as zeros" not in CliRunner().invoke(app, [command, str(path)]).output
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)
    for command in ("info", "verify"):
        shown = CliRunner().invoke(app, [command, str(path)])
        assert "in 1 hole read as zeros" in " ".join((shown.output + shown.stderr).split())
        assert shown.exit_code == 0


def test_text_is_tokens_of_eight_bits_for_a_caller_who_says_so(tmp_path):
    """Byte-level models read text as it is."""
    path = tmp_path / "input.txt"
    path.write_text(TEXT)
    assert bytes(open_tokens(path, dtype="uint8")[:]).decode() == TEXT
    with pytest.raises(FormatError, match="a text file"):
        open_tokens(path, dtype="uint16")


@pytest.mark.parametrize(
    ("index", "told"),
    [
        (b"", "empty; copy it again"),
        (LFS_POINTER, "git-LFS pointer; .*git lfs pull"),
        (HTML, "an HTML page"),
        (bytes(100), "no Megatron index"),
        (b"MMIDIDX", "no Megatron index"),
    ],
    ids=["empty", "git-lfs", "html", "zeros", "truncated"],
)
@pytest.mark.parametrize("given", ["corpus.bin", "corpus"])
def test_tokens_whose_index_is_something_else_are_refused(tmp_path, index, told, given):
    TOKENS.tofile(tmp_path / "corpus.bin")
    (tmp_path / "corpus.idx").write_bytes(index)
    with pytest.raises(FormatError, match=rf"(?s)corpus\.idx next to it is .*{told}.*format=\"raw\""):
        open_tokens(tmp_path / given)
    np.testing.assert_array_equal(open_tokens(tmp_path / "corpus.bin", format="raw")[:], TOKENS)


def test_the_name_of_a_megatron_pair_needs_an_index(tmp_path):
    path = tmp_path / "my-gpt2_text_document.bin"
    TOKENS.tofile(path)
    told = r"Megatron pair, but .*my-gpt2_text_document\.idx does not exist.*format=\"raw\""
    with pytest.raises(FormatError, match=told):
        open_tokens(path)
    np.testing.assert_array_equal(open_tokens(path, format="raw")[:], TOKENS)


def test_a_stem_without_a_pair_names_both_files(tmp_path):
    stem = tmp_path / "my-gpt2_text_document"
    with pytest.raises(FileNotFoundError) as caught:
        open_tokens(stem)
    told = f"No such file or directory. There is no Megatron pair {stem}.idx and {stem}.bin either"
    assert (caught.value.strerror, caught.value.filename) == (told, str(stem))
    # Half of a pair is an error of its own.
    TOKENS.tofile(f"{stem}.bin")
    with pytest.raises(OSError, match="cannot open"):
        open_tokens(stem)


def test_a_path_through_a_file_is_not_called_missing(tmp_path):
    TOKENS.tofile(tmp_path / "train.bin")
    with pytest.raises(NotADirectoryError):
        open_tokens(tmp_path / "train.bin/stem")


def test_a_loader_does_not_train_on_a_git_lfs_pointer(tmp_path):
    (tmp_path / "train.bin").write_bytes(LFS_POINTER * 40)
    with pytest.raises(FormatError, match="git-LFS pointer"):
        TokenLoader(tmp_path / "train.bin", batch_size=1, sequence_length=8)


@pytest.mark.parametrize("command", ["verify", "info"])
def test_commands_call_no_such_file_good(tmp_path, command):
    path = tmp_path / "train.bin"
    path.write_bytes(LFS_POINTER * 2)
    ended = CliRunner().invoke(app, [command, str(path)])
    assert ended.exit_code == 1
    assert "git-LFS pointer" in ended.output
