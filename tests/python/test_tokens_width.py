"""Raw files opened with another token width than they were written with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from typer.testing import CliRunner

from pagestream import TokenLoader, open_tokens
from pagestream.cli._app import app
from pagestream.errors import FormatError

WIDTHS = ["uint16", "uint32", "int64"]
TEXT = "\n".join(path.read_text() for path in sorted((Path(__file__).parents[2] / "docs").glob("*.md")))


@pytest.fixture(scope="module")
def tokenized():
    """Tokenizes real text with vocabularies of several sizes; BPE, as in GPT-2."""
    found = {"bytes": np.frombuffer(TEXT.encode(), "u1")}
    for size in (300, 1000, 8000):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator([TEXT], trainer)
        found[size] = np.array(tokenizer.encode(TEXT).ids)
    # This imitates a large vocabulary: the same words, with ids drawn from 128,256.
    random = np.random.default_rng(0)
    found["large"] = np.sort(random.choice(128_256, 8000, replace=False))[found[8000]]
    return found


VOCABULARIES = ["bytes", 300, 1000, 8000, "large"]


def pieces(tokens):
    """Yields many corpora with different starts, as short as a sentence or as long as the whole."""
    for start in range(0, len(tokens) - 1000, max(1, len(tokens) // 40)):
        for length in (10, 64, 300, 2000, len(tokens)):
            yield tokens[start : start + length]


def written(vocabulary):
    return [width for width in WIDTHS if not (vocabulary == "large" and width == "uint16")]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_files_of_their_own_width_open(tmp_path, tokenized, vocabulary):
    count = 0
    for width in written(vocabulary):
        for piece in pieces(tokenized[vocabulary]):
            piece.astype(width).tofile(tmp_path / "t.bin")
            assert len(open_tokens(tmp_path / "t.bin", dtype=width)) == len(piece)
            count += 1
    assert count > 200


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_files_of_another_width_are_refused_with_the_right_one(tmp_path, tokenized, vocabulary):
    for width in written(vocabulary):
        tokenized[vocabulary][: len(tokenized[vocabulary]) // 4 * 4].astype(width).tofile(tmp_path / "t.bin")
        for other in set(WIDTHS) - {width}:
            told = rf'{width}: open it with open_tokens\(path, dtype="{width}"\)'
            with pytest.raises(FormatError, match=f"read as {other} .* looks like {told}"):
                open_tokens(tmp_path / "t.bin", dtype=other)
            assert open_tokens(tmp_path / "t.bin", dtype=other, format="raw").dtype == other


@pytest.mark.parametrize("name", ["t.bin", "t.npy", "t.ds", "t"])
def test_the_default_is_checked_in_every_raw_file_and_in_loaders(tmp_path, tokenized, name):
    tokenized[8000].astype("uint32").tofile(tmp_path / name)
    for open_file in (open_tokens, lambda path: TokenLoader(path, sequence_length=8, batch_size=2)):
        with pytest.raises(
            FormatError, match=r"looks like uint32: open it with open_tokens\(path, dtype=\"uint32\"\)"
        ):
            open_file(tmp_path / name)
    for command in ("info", "verify"):
        shown = CliRunner().invoke(app, [command, str(tmp_path / name)])
        assert shown.exit_code != 0
        assert "looks like uint32" in " ".join((shown.output + shown.stderr).split())


def test_one_shard_of_another_width_is_found(tmp_path, tokenized):
    for number, width in enumerate(["uint16", "uint16", "uint32"]):
        tokenized[8000].astype(width).tofile(tmp_path / f"{number}.bin")
    with pytest.raises(FormatError, match=r"2\.bin: .* looks like uint32"):
        open_tokens(tmp_path)


NO_IDS = {
    "float32": (lambda ids: ids.astype("f4"), "uint32"),
    "float32 weights": (lambda ids: np.random.default_rng(0).normal(size=len(ids)).astype("f4"), "uint32"),
    "hashes of 32 bits": (
        lambda ids: np.random.default_rng(0).integers(0, 2**32, len(ids)).astype("u4"),
        "uint32",
    ),
    "float64": (lambda ids: ids.astype("f8"), "int64"),
    "big-endian uint32": (lambda ids: ids.astype(">u4"), "uint32"),
    "big-endian uint32 as uint16": (lambda ids: ids.astype(">u4"), "uint16"),
    "big-endian int64": (lambda ids: ids.astype(">i8"), "uint32"),
}


@pytest.mark.parametrize("case", NO_IDS)
def test_no_width_is_proposed_for_values_that_fit_none(tmp_path, tokenized, case):
    convert, dtype = NO_IDS[case]
    convert(tokenized[8000]).tofile(tmp_path / "t.bin")
    with pytest.raises(FormatError, match=f"read as {dtype} tokens and its values are not ids of that type"):
        open_tokens(tmp_path / "t.bin", dtype=dtype)


@pytest.mark.parametrize("first", [65_536, 128_256, 151_643])
def test_codes_above_the_text_are_no_ids_of_16_bits(tmp_path, first):
    (np.random.default_rng(0).integers(0, 8192, 20_000) + first).astype("u4").tofile(tmp_path / "t.bin")
    with pytest.raises(FormatError, match="looks like uint32"):
        open_tokens(tmp_path / "t.bin")
    assert open_tokens(tmp_path / "t.bin", dtype="uint32").dtype == "uint32"


@pytest.mark.parametrize("width", ["uint32", "int64"])
def test_wide_tokens_are_no_bytes(tmp_path, tokenized, width):
    tokenized[8000].astype(width).tofile(tmp_path / "t.bin")
    with pytest.raises(FormatError, match=f"read as uint8 .* looks like {width}"):
        open_tokens(tmp_path / "t.bin", dtype="uint8")


def test_padding_at_the_beginning_hides_no_wrong_width(tmp_path, tokenized):
    padded = np.concatenate([np.zeros(5000, "u4"), tokenized[8000].astype("u4")])
    padded.tofile(tmp_path / "t.bin")
    with pytest.raises(FormatError, match="looks like uint32"):
        open_tokens(tmp_path / "t.bin")


@pytest.mark.parametrize("token", [0, 1, 255, 256, 50_256, 65_535])
def test_a_file_of_one_token_opens_with_any_width(tmp_path, token):
    for width in WIDTHS:
        np.full(4000, token, width).tofile(tmp_path / "t.bin")
        for asked in WIDTHS:
            assert open_tokens(tmp_path / "t.bin", dtype=asked).dtype == asked


def test_labels_with_ignored_places_open(tmp_path, tokenized):
    for width in ("int32", "int64"):
        labels = tokenized["large"].astype(width)
        labels[np.random.default_rng(1).random(len(labels)) < 0.7] = -100
        labels.tofile(tmp_path / "t.bin")
        assert open_tokens(tmp_path / "t.bin", dtype=width)[:100].tolist() == labels[:100].tolist()
