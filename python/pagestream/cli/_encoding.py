"""The parts of ``pagestream tokenize``: processes create the tokens of each part in ``OUT.parts``.

```text
part ──process──> OUT.parts/<key>.tokens, then <key>.lengths: if it exists, the part is complete
                            └── depends on everything that determines the tokens: an existing part is kept
```
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pagestream._common.atomic_write import Replacement
from pagestream.cli._progress import bar_of_bytes
from pagestream.cli._stamps import unchanged
from pagestream.cli._texts import Part, documents
from pagestream.cli._tokenizer import LARGEST_PIECE_CHARS, cuts_between_words, load, pieces
from pagestream.errors import FileChangedError, FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

# A batch for the tokenizer ends with the piece that reaches one of these limits.
_BATCH_PIECES, _BATCH_CHARS = 256, 1 << 20


@dataclass(frozen=True)
class Job:
    """The settings that all parts share.

    Attributes:
        tokenizer: The path of the tokenizer.
        sha256: The SHA-256 of the tokenizer's file, in hexadecimal digits.
        dtype: The type of tokens, which can hold the whole vocabulary.
        end_token: The token after each document; None for no token.
        folder: The folder for the parts.
    """

    tokenizer: str
    sha256: str
    dtype: str
    end_token: int | None
    folder: str


def names_of(parts: list[Part], job: Job) -> list[str]:
    """Returns the path for the tokens of each part."""
    names = []
    for number, part in enumerate(parts):
        # A device's number may change when it is mounted again. The other facts distinguish texts.
        stamp = part.stamp._replace(device=0)
        facts = (
            job.sha256,
            job.dtype,
            job.end_token,
            number,
            replace(part, path=os.path.abspath(part.path), stamp=stamp),
        )
        key = hashlib.blake2b(repr(facts).encode(errors="surrogateescape"), digest_size=16).hexdigest()
        names.append(os.path.join(job.folder, f"{number:06}-{key}"))
    return names


def is_made(name: str) -> bool:
    """Returns whether the tokens of a part exist."""
    return os.path.exists(f"{name}.lengths")


def encode(parts: list[Part], names: list[str], job: Job, processes: int) -> int:
    """Creates the tokens of the parts that have none yet, and returns the number of these parts.

    Raises:
        ChildProcessError: A process was killed.
        FileChangedError: A text changed since it was split into parts, or the tokenizer since it was loaded.
        FormatError: A file is invalid.
    """
    missing = [(part, name) for part, name in zip(parts, names, strict=True) if not is_made(name)]
    total_bytes = sum(part.nbytes for part in parts)
    with bar_of_bytes() as bar:
        task = bar.add_task("tokenize", total=total_bytes)
        bar.update(task, advance=total_bytes - sum(part.nbytes for part, _ in missing))
        # "spawn" copies no thread of this process in the middle of its work, and no native code delays
        # Ctrl-C.
        context = multiprocessing.get_context("spawn")
        workers = min(processes, max(1, len(missing)))
        with ProcessPoolExecutor(workers, context, _prepare, (workers > 1,)) as pool:
            try:
                # A Ctrl-C meanwhile is raised at the end of the block.
                with _signals_blocked():
                    waiting = {pool.submit(encode_part, part, name, job): part for part, name in missing}
                for each in as_completed(waiting):
                    each.result()
                    bar.update(task, advance=waiting[each].nbytes)
            except BaseException as error:
                # Do not wait for running and queued parts, but wait for the pool's thread: at exit the
                # interpreter writes to its pipe, and fails if the thread closes the pipe at the same time.
                for process in multiprocessing.active_children():
                    process.kill()
                    process.join()
                pool.shutdown(cancel_futures=True)
                if isinstance(error, BrokenProcessPool):
                    message = (
                        "a process that encoded was killed, maybe for want of memory: use fewer --processes"
                    )
                    raise ChildProcessError(message) from error
                raise
    return len(missing)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Blocks Ctrl-C and SIGTERM briefly, also in processes that start meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(is_one_of_several: bool) -> None:
    """Makes a process use one thread if there are several processes, and end with its parent."""
    if is_one_of_several:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Ctrl-C stays blocked: the first process ends the others.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def _tokenizer(path: str, sha256: str) -> tuple[Any, bool]:
    """Returns the tokenizer of this process, and whether it allows splitting texts."""
    loaded, found = load(path)
    if found != sha256:
        message = (
            f"the tokenizer changed during the run: found SHA-256 {found}, expected {sha256}; run the same "
            "command again"
        )
        raise FileChangedError(errno.ESTALE, message, path)
    return loaded, cuts_between_words(loaded)


def encode_part(part: Part, name: str, job: Job) -> None:
    """Writes the tokens of a part, and the lengths of its documents.

    Raises:
        FileChangedError: The text changed since it was split into parts, or the tokenizer since it was
            loaded.
        FormatError: The text is invalid.
    """
    tokenizer, may_cut = _tokenizer(job.tokenizer, job.sha256)
    # It omits the offsets in the text. Some versions lack it.
    encode_batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    lengths, length = [], 0
    with Replacement() as replacement, unchanged(part.path, part.stamp):
        # The lengths are written last: if they exist, the part is complete.
        tokens = replacement.open(f"{name}.tokens", "tokens")
        for batch in _batches(part, may_cut=may_cut):
            try:
                encodings = encode_batch([text for text, _ in batch], add_special_tokens=False)
            except Exception as error:
                # The tokenizer raises no specific class, for example for a word without a token.
                message = f"{job.tokenizer}: a text of {part.path} cannot be encoded: {error}"
                raise ValueError(message) from error
            for encoding, (_, is_end) in zip(encodings, batch, strict=True):
                ids = encoding.ids
                if is_end and job.end_token is not None:
                    ids.append(job.end_token)
                tokens.write(np.array(ids, _stored(job.dtype)).tobytes())
                length += len(ids)
                if is_end:
                    lengths.append(length)
                    length = 0
        replacement.open(f"{name}.lengths", "tokens").write(np.array(lengths, "<i8").tobytes())


def _batches(part: Part, *, may_cut: bool) -> Iterator[list[tuple[str, bool]]]:
    """Yields the documents of a part, or pieces of them, each with a flag for the end of a document."""
    batch: list[tuple[str, bool]] = []
    chars = 0
    for text in documents(part):
        left = len(text)
        for piece in pieces(text) if may_cut else (text,):
            if len(piece) > LARGEST_PIECE_CHARS:
                message = (
                    f"{part.path}: a document has {len(piece):,} characters that cannot be cut; at most "
                    f"{LARGEST_PIECE_CHARS:,} are encoded in one go; divide it, or use --lines for text"
                )
                raise FormatError(message)
            left -= len(piece)
            batch.append((piece, left == 0))
            chars += len(piece)
            if len(batch) == _BATCH_PIECES or chars >= _BATCH_CHARS:
                yield batch
                batch, chars = [], 0
    if batch:
        yield batch


def _stored(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")


def tokens_of(name: str, job: Job) -> npt.NDArray[Any]:
    """Returns the tokens of a part."""
    path = f"{name}.tokens"
    if not os.path.getsize(path):
        return np.zeros(0, job.dtype)
    return np.memmap(path, _stored(job.dtype), "r")


def lengths_of(name: str) -> npt.NDArray[np.int64]:
    """Returns the number of tokens in each document of a part."""
    return np.fromfile(f"{name}.lengths", "<i8")
