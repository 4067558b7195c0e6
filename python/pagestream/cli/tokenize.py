"""``pagestream tokenize``: converts text to a token file.

```text
files ──> parts of a few MiB ──processes──> OUT.parts ──> OUT, renamed into place
```
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from pagestream._common.amounts import count, size
from pagestream._common.paths import expanded
from pagestream.cli import _console, _output
from pagestream.cli._arguments import AsJson
from pagestream.cli._encoding import Job, encode, lengths_of, names_of, tokens_of
from pagestream.cli._parts_folder import folder_of_parts
from pagestream.cli._stamps import Stamp, refuse_changed
from pagestream.cli._texts import Part, parts_of
from pagestream.cli._token_target import Format, dtype_for, files_of, format_of, refuse_what_is_not_ours
from pagestream.cli._tokenizer import LARGEST_PIECE_CHARS, cuts_between_words, load
from pagestream.cli._tokenizer_path import tokenizer_path
from pagestream.tokens.writing import write_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_ENDED_BY_SIGTERM = 143


def tokenize(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="IN... OUT",
            help="Text, JSON lines or Parquet files, then the token file to write. Text and JSON lines may "
            "be compressed: .gz, .zst.",
        ),
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            help="A tokenizer.json, the folder of a model, or the name of a model in the local cache of "
            "Hugging Face."
        ),
    ],
    format: Annotated[
        Format | None,
        typer.Option(
            help="The format of the token file. By default npy if OUT ends with .npy, megatron if it ends "
            "with .idx, else raw."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="The type of tokens. By default the smaller of uint16 and uint32 (for megatron int32) that "
            "fits the vocabulary."
        ),
    ] = None,
    field: Annotated[str, typer.Option(help="The field of JSON lines, and the column of Parquet.")] = "text",
    lines: Annotated[
        bool,
        typer.Option(
            "--lines", help="Each line of a text file is a document. Without it the whole file is one."
        ),
    ] = False,
    end_token: Annotated[
        str | None, typer.Option(help="The token that ends each document, e.g. <|endoftext|>.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one per processor.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token file of text. After an interruption the same command resumes where it stopped.

    Example: pagestream tokenize data/*.jsonl.gz train.bin --tokenizer gpt2 --end-token "<|endoftext|>"
    """
    *sources, out = map(expanded, paths)
    if not sources:
        message = f"tokenize takes the texts and then the token file to write, but found only {out}"
        raise ValueError(message)
    written_as = format or format_of(out)
    refuse_what_is_not_ours(out, written_as, sources)
    tokenizer = tokenizer_path(tokenizer)
    loaded, sha256 = load(tokenizer)
    job = _job(loaded, sha256, tokenizer, written_as, dtype, end_token, out)
    stamps = {path: Stamp.of(os.stat(path)) for path in sources}
    parts = [part for path in sources for part in parts_of(path, field, lines=lines)]
    if not cuts_between_words(loaded):
        _refuse_large_texts(parts, tokenizer)
    names = names_of(parts, job)
    with _sigterm_as_exit(), folder_of_parts(job.folder, out, parts, names):
        encoded = encode(parts, names, job, processes or len(os.sched_getaffinity(0)))
        for path, stamp in stamps.items():
            refuse_changed(path, stamp)
        written = write_tokens(
            out,
            (tokens_of(name, job) for name in names),
            dtype=job.dtype,
            format=written_as,
            documents=_starts(names) if written_as == "megatron" else None,
        )
        ended = sum(len(lengths_of(name)) for name in names)
    if as_json:
        _output.print_json(
            {
                "path": out,
                "files": files_of(out, written_as),
                "tokens": written,
                "documents": ended,
                "dtype": job.dtype,
                "parts": len(parts),
                "parts_made_before": len(parts) - encoded,
            }
        )
        return
    files = " and ".join(files_of(out, written_as))
    _console.console().print(
        f"{files}: {count(written, 'token')} of {job.dtype}, {count(ended, 'document')}, "
        f"{size(written * np.dtype(job.dtype).itemsize)}"
    )


def _job(
    loaded: Any,  # noqa: ANN401 - tokenizers has no types
    sha256: str,
    tokenizer: str,
    format: Format,
    dtype: str | None,
    end_token: str | None,
    out: str,
) -> Job:
    end = None if end_token is None else loaded.token_to_id(end_token)
    if end_token is not None and end is None:
        message = f"{tokenizer}: no token {end_token!r}; --end-token names one of its vocabulary"
        raise ValueError(message)
    largest = max(loaded.get_vocab(with_added_tokens=True).values(), default=0)
    return Job(
        os.path.abspath(tokenizer),
        sha256,
        dtype_for(format, dtype, largest),
        end,
        f"{os.path.abspath(out)}.parts",
    )


def _refuse_large_texts(parts: list[Part], tokenizer: str) -> None:
    for part in parts:
        if part.kind == "text" and part.nbytes > LARGEST_PIECE_CHARS:
            message = (
                f"{part.path}: one document of {size(part.nbytes)}; at most {size(LARGEST_PIECE_CHARS)} are "
                f"encoded in one go, which {tokenizer} needs, and which takes more than a hundred times as "
                "much memory; use --lines if each line is a document, or divide the file"
            )
            raise ValueError(message)


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Makes SIGTERM end the block as Ctrl-C does, unless the parent process had it ignored."""
    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED_BY_SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _starts(names: list[str]) -> npt.NDArray[np.int64]:
    """Returns the start of each document, and the number of tokens."""
    lengths = np.concatenate([np.zeros(1, np.int64), *map(lengths_of, names)])
    return np.cumsum(lengths)
