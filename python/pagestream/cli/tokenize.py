"""``pagestream tokenize``: text to a token file.

```text
files ──> parts of about 32 MiB ──processes──> OUT.parts/<key>.tokens, .lengths ──> OUT, renamed into place
                │                                       │
                └── the key is made of all that the tokens depend on: a part that is there is not made again
```
"""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import shutil
import signal
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from pagestream._common.amounts import count, size
from pagestream._common.atomic_write import Replacement
from pagestream.cli import _output
from pagestream.cli._arguments import AsJson
from pagestream.cli._texts import Part, documents, parts_of
from pagestream.tokens.writing import write_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

# Documents that are encoded at a time.
_BATCH_DOCUMENTS = 256


@dataclass(frozen=True)
class _Job:
    """What all parts have in common.

    Attributes:
        tokenizer: The path of the tokenizer.
        dtype: The type of tokens.
        end_token: What ends each document; None for nothing.
        folder: Where the parts go.
    """

    tokenizer: str
    dtype: str
    end_token: int | None
    folder: str


def tokenize(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="IN... OUT", help="Text, JSON lines or Parquet; at last the token file."),
    ],
    tokenizer: Annotated[str, typer.Option(help="A tokenizer.json, as Hugging Face models have it.")],
    format: Annotated[
        Literal["raw", "npy", "llmc", "megatron"], typer.Option(help="The format of the token file.")
    ] = "raw",
    dtype: Annotated[
        str | None, typer.Option(help="The type of tokens. By default the smallest of uint16 and uint32.")
    ] = None,
    field: Annotated[str, typer.Option(help="The field of JSON lines, and the column of Parquet.")] = "text",
    lines: Annotated[bool, typer.Option("--lines", help="Each line of a text file is a document.")] = False,
    end_token: Annotated[
        str | None, typer.Option(help="The token that ends each document, e.g. <|endoftext|>.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one a processor.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token file of text. The same command goes on after an interruption, where it was.

    Example: pagestream tokenize data/*.jsonl train.bin --tokenizer tokenizer.json --end-token "<|endoftext|>"
    """
    *sources, out = paths
    if not sources:
        message = "tokenize takes the texts and, at last, the token file that it makes"
        raise ValueError(message)
    job = _job(tokenizer, dtype, end_token, out)
    parts = [part for path in sources for part in parts_of(path, field, lines=lines)]
    names = _names(parts, job)
    done = _encode(parts, names, job, processes or len(os.sched_getaffinity(0)))
    written = write_tokens(
        out,
        (_tokens(name, job) for name in names),
        dtype=job.dtype,
        format=format,
        documents=_starts(names) if format == "megatron" else None,
    )
    ended = sum(len(_lengths(name)) for name in names)
    found = {
        "path": out,
        "tokens": written,
        "documents": ended,
        "dtype": job.dtype,
        "parts": len(parts),
        "parts_made_before": len(parts) - done,
    }
    shutil.rmtree(job.folder)
    if as_json:
        _output.print_json(found)
        return
    _output.console().print(
        f"{out}: {count(written, 'token')} of {job.dtype}, {count(ended, 'document')}, "
        f"{size(written * np.dtype(job.dtype).itemsize)}"
    )


def _job(tokenizer: str, dtype: str | None, end_token: str | None, out: str) -> _Job:
    loaded = _loaded(tokenizer)
    end = None if end_token is None else loaded.token_to_id(end_token)
    if end_token is not None and end is None:
        message = f"{tokenizer}: no token {end_token!r}; --end-token names one of its vocabulary"
        raise ValueError(message)
    if dtype is None:
        largest = max(loaded.get_vocab(with_added_tokens=True).values(), default=0)
        dtype = "uint16" if largest <= np.iinfo("u2").max else "uint32"
    return _Job(os.path.abspath(tokenizer), dtype, end, f"{os.path.abspath(out)}.parts")


def _loaded(path: str) -> Any:  # noqa: ANN401 - tokenizers has no types
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        message = "tokenize needs tokenizers: pip install 'pagestream[tokenize]'"
        raise ImportError(message) from error
    if not os.path.isfile(path):
        raise FileNotFoundError(errno.ENOENT, "no such tokenizer", path)
    try:
        return Tokenizer.from_file(path)
    except Exception as error:
        # It raises no other class.
        message = f"{path}: not a tokenizer.json: {error}"
        raise ValueError(message) from error


def _names(parts: list[Part], job: _Job) -> list[str]:
    """Returns where the tokens of each part are, once they are made."""
    with open(job.tokenizer, "rb") as file:
        common = [hashlib.file_digest(file, "sha256").hexdigest(), job.dtype, job.end_token]
    names = []
    for number, part in enumerate(parts):
        stat = os.stat(part.path)
        facts = [
            *common,
            os.path.abspath(part.path),
            stat.st_size,
            stat.st_mtime_ns,
            number,
            *asdict(part).values(),
        ]
        key = hashlib.blake2b(repr(facts).encode(errors="surrogateescape"), digest_size=16).hexdigest()
        names.append(os.path.join(job.folder, f"{number:06}-{key}"))
    return names


def _encode(parts: list[Part], names: list[str], job: _Job, processes: int) -> int:
    """Makes the tokens of the parts that have none yet, and returns how many these are."""
    os.makedirs(job.folder, exist_ok=True)
    missing = [
        (part, name) for part, name in zip(parts, names, strict=True) if not os.path.exists(f"{name}.lengths")
    ]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
    )
    is_shown = sys.stderr.isatty()
    with Progress(*columns, console=_output.console(to_errors=True), disable=not is_shown) as progress:
        task = progress.add_task("tokenize", total=sum(part.nbytes for part in parts))
        progress.update(
            task, advance=sum(part.nbytes for part in parts) - sum(part.nbytes for part, _ in missing)
        )
        # No thread of this process is left in the middle of something. No native code keeps it from Ctrl-C.
        context = multiprocessing.get_context("spawn")
        workers = min(processes, max(1, len(missing)))
        with ProcessPoolExecutor(workers, context, _prepare, (workers > 1,)) as pool:
            try:
                # A Ctrl-C meanwhile is raised at the end of the block.
                with _interrupt_blocked():
                    waiting = {pool.submit(_encode_part, part, name, job): part for part, name in missing}
                for each in as_completed(waiting):
                    each.result()
                    progress.update(task, advance=waiting[each].nbytes)
            except BaseException:
                # Nothing that is encoded or queued is waited for. The next run removes temporary files.
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
    return len(missing)


@contextmanager
def _interrupt_blocked() -> Iterator[None]:
    """Blocks Ctrl-C for a moment, and for good in the processes that begin meanwhile: this one ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(is_one_of_several: bool) -> None:
    """Has a process use one thread if there is a process for each processor."""
    if is_one_of_several:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


# By process: the tokenizer that was loaded last.
_loaded_here: dict[str, Any] = {}


def _encode_part(part: Part, name: str, job: _Job) -> None:
    """Writes the tokens of a part, and the lengths of its documents."""
    if job.tokenizer not in _loaded_here:
        _loaded_here[job.tokenizer] = _loaded(job.tokenizer)
    end = [] if job.end_token is None else [job.end_token]
    lengths: list[int] = []
    with Replacement() as replacement:
        # The lengths come last: where they are, all is.
        tokens = replacement.open(f"{name}.tokens", "tokens")
        for batch in _batches(documents(part)):
            for encoding in _loaded_here[job.tokenizer].encode_batch(batch, add_special_tokens=False):
                ids = np.array([*encoding.ids, *end], np.uint32)
                tokens.write(_fitting(ids, job.dtype).tobytes())
                lengths.append(len(ids))
        replacement.open(f"{name}.lengths", "tokens").write(np.array(lengths, "<i8").tobytes())


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(texts, _BATCH_DOCUMENTS)):
        yield batch


def _fitting(ids: npt.NDArray[np.uint32], dtype: str) -> npt.NDArray[Any]:
    most = np.iinfo(dtype).max
    if len(ids) and int(ids.max()) > most:
        message = f"token {int(ids.max())} does not fit in {dtype}; --dtype names a larger type"
        raise ValueError(message)
    return ids.astype(np.dtype(dtype).newbyteorder("<"))


def _tokens(name: str, job: _Job) -> npt.NDArray[Any]:
    path = f"{name}.tokens"
    if not os.path.getsize(path):
        return np.zeros(0, job.dtype)
    return np.memmap(path, np.dtype(job.dtype).newbyteorder("<"), "r")


def _lengths(name: str) -> npt.NDArray[np.int64]:
    return np.fromfile(f"{name}.lengths", "<i8")


def _starts(names: list[str]) -> npt.NDArray[np.int64]:
    """Returns where each document begins, and the number of tokens."""
    lengths = np.concatenate([np.zeros(1, np.int64), *map(_lengths, names)])
    return np.cumsum(lengths)
