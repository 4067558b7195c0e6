"""Turns the source text of Python's standard library into token files.

The demo trains a byte-level BPE on the text and encodes the text with it. Token files are flat little-endian
`uint16` without a header. They contain the library's files one after another, each followed by an end-of-text
token.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import sysconfig
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from files import DemoError, read_record, settings_key, write_record, written_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

END_OF_TEXT = "<|endoftext|>"
VALIDATION_INTERVAL_FILES = 20
"""Every 20th file is kept for validation: no text of it is trained on."""

# Installed packages, tests, tables of data, old code. About 8 MB of written code remain.
_EXCLUDED = {
    *("site-packages", "dist-packages", "__pycache__", "_vendor", "_bundled"),
    *("test", "tests", "idle_test", "idlelib", "turtledemo", "lib2to3"),
    *("encodings", "pydoc_data", "lib-dynload"),
}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The token files, and facts about them.

    Attributes:
        train_path: Token file for training.
        validation_path: Token file of other source files, for the validation loss.
        tokenizer_path: The tokenizer, in the format of `tokenizers`.
        key: Hash of all inputs of the files.
        files: Number of source files.
        text_bytes: Size of the source files.
        train_tokens: Length of the training file.
        validation_tokens: Length of the validation file.
        reused: Whether the files existed already.
    """

    train_path: Path
    validation_path: Path
    tokenizer_path: Path
    key: str
    files: int
    text_bytes: int
    train_tokens: int
    validation_tokens: int
    reused: bool

    def facts(self) -> dict[str, object]:
        """Returns all attributes except the paths, for JSON."""
        return {name: value for name, value in dataclasses.asdict(self).items() if not name.endswith("_path")}


def source_files(root: Path, max_files: int | None = None) -> list[Path]:
    """Returns the library's Python files, in an order that does not depend on the file system.

    Args:
        root: The library's directory.
        max_files: The maximum number of files, evenly spread. None takes all.

    Raises:
        DemoError: There are too few files for training and validation.
    """
    files = []
    for directory, names, file_names in os.walk(root):
        names[:] = [name for name in names if name not in _EXCLUDED and not name.startswith("config-")]
        python = (name for name in file_names if name.endswith(".py") and not name.startswith("_sysconfig"))
        files += [Path(directory, name) for name in python]
    files.sort(key=lambda path: path.relative_to(root).as_posix())
    if max_files is not None and max_files < len(files):
        files = [files[number * len(files) // max_files] for number in range(max_files)]
    if len(files) < VALIDATION_INTERVAL_FILES:
        message = f"{len(files)} Python files under {root}; at least {VALIDATION_INTERVAL_FILES} are needed"
        raise DemoError(message)
    return files


def prepare(output: Path, *, vocabulary_tokens: int, max_files: int | None, fresh: bool) -> Corpus:
    """Writes the tokenizer and both token files, or reuses existing ones.

    Args:
        output: Directory for `tokenizer.json`, `train.bin`, `val.bin` and their record `corpus.json`.
        vocabulary_tokens: Size of the tokenizer's vocabulary, at most 65,536.
        max_files: See `source_files`.
        fresh: Write the files even if they exist.

    Raises:
        DemoError: There is too little text, or decoding does not restore the text.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = source_files(root, max_files)
    listing = [(path.relative_to(root).as_posix(), path.stat().st_size) for path in files]
    key = settings_key({"python": sys.version, "vocabulary_tokens": vocabulary_tokens, "files": listing})
    record_path = output / "corpus.json"
    record = None if fresh else read_record(record_path, key)
    reused = record is not None
    if record is None:
        facts = _build(output, files, vocabulary_tokens)
        written = [output / name for name in ("tokenizer.json", "train.bin", "val.bin")]
        write_record(record_path, key, written, facts)
        record = {"key": key, **facts}
    return Corpus(
        train_path=output / "train.bin",
        validation_path=output / "val.bin",
        tokenizer_path=output / "tokenizer.json",
        key=key,
        files=len(files),
        text_bytes=sum(size for _, size in listing),
        train_tokens=record["train_tokens"],
        validation_tokens=record["validation_tokens"],
        reused=reused,
    )


def _build(output: Path, files: Sequence[Path], vocabulary_tokens: int) -> dict[str, int]:
    texts = [_read_source(path) for path in files]
    validation = texts[VALIDATION_INTERVAL_FILES - 1 :: VALIDATION_INTERVAL_FILES]
    train = [text for number, text in enumerate(texts, 1) if number % VALIDATION_INTERVAL_FILES]
    tokenizer = train_tokenizer(train, vocabulary_tokens)
    if tokenizer.decode(tokenizer.encode(validation[0]).ids) != validation[0]:
        message = "the tokenizer does not give back the text that it was given"
        raise DemoError(message)
    with written_whole(output / "tokenizer.json") as partial:
        tokenizer.save(str(partial))
    return {
        "train_tokens": write_tokens(output / "train.bin", tokenizer, train),
        "validation_tokens": write_tokens(output / "val.bin", tokenizer, validation),
    }


def _read_source(path: Path) -> str:
    """Returns the text of a Python file, decoded by its declared encoding."""
    with tokenize.open(path) as file:
        return file.read()


def train_tokenizer(texts: Sequence[str], vocabulary_tokens: int) -> Tokenizer:
    """Trains a byte-level BPE. It can encode any text, and decoding restores the text exactly."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_tokens,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return tokenizer


def write_tokens(path: Path, tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Encodes texts into one token file.

    Args:
        path: The file, which is either complete or absent.
        tokenizer: A tokenizer whose vocabulary fits `uint16`.
        texts: The documents.

    Returns:
        The number of tokens written.
    """
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    batch_texts = 16
    tokens = 0
    progress = tqdm(total=len(texts), desc=f"encode {path.name}", unit="file")
    with written_whole(path) as partial, partial.open("wb") as file, progress:
        for first in range(0, len(texts), batch_texts):
            encodings = tokenizer.encode_batch(texts[first : first + batch_texts])
            for encoding in encodings:
                document = np.array([*encoding.ids, end_of_text], dtype="<u2")
                file.write(document.tobytes())
                tokens += len(document)
            progress.update(len(encodings))
    return tokens
