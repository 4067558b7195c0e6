"""``pagestream verify``: whether files are what they should be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from pagestream._common.amounts import count
from pagestream.cli import _output
from pagestream.cli._arguments import AsJson, Paths
from pagestream.cli._target import opened
from pagestream.weights.checkpoint import Checkpoint


@dataclass
class Verdict:
    """What was found at a path.

    Attributes:
        path: The path.
        kind: ``"safetensors"`` or ``"tokens"``; None if that cannot be told.
        files: How many files.
        checked: How many of them were compared with checksums, byte by byte.
        bad: What is wrong.
    """

    path: str
    kind: str | None = None
    files: int = 0
    checked: int = 0
    bad: list[str] = field(default_factory=list)


def verify(
    paths: Paths,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that read and hash.")] = None,
    as_json: AsJson = False,
) -> None:
    """Validate headers, indices and sizes, and compare bytes with checksums where there are any.

    Checksums are those of `write_checksums`, and the SHA-256 in the names of the Hugging Face cache.

    Example: pagestream verify ~/.cache/huggingface/hub/models--gpt2/snapshots/*
    """
    verdicts = [_verdict(path, threads) for path in paths]
    if as_json:
        _output.print_json(verdicts)
    else:
        _print(verdicts)
    if any(verdict.bad for verdict in verdicts):
        raise typer.Exit(_output.BAD)


def _verdict(path: str, threads: int | None) -> Verdict:
    found = Verdict(path)
    try:
        with opened(path, ahead=False) as files:
            if isinstance(files, Checkpoint):
                found.kind, found.files = "safetensors", len(files.files)
                report = files.verify(threads=threads)
                found.checked = len(report.checked)
                found.bad = list(map(str, report.bad))
            else:
                found.kind, found.files = "tokens", len(files.shards)
    except _output.BAD_FILE as error:
        found.bad = [str(error)]
    return found


def _print(verdicts: list[Verdict]) -> None:
    console = _output.console()
    for verdict in verdicts:
        if verdict.bad:
            console.print(f"{verdict.path}: bad", style="red")
            for line in verdict.bad:
                console.print(f"  {line}")
            continue
        compared = (
            "headers and sizes are right; no checksums to compare bytes with"
            if not verdict.checked
            else f"every byte of {count(verdict.checked, 'file')} of {verdict.files} has its checksum"
        )
        console.print(
            f"{verdict.path}: good. {count(verdict.files, 'file')} of {verdict.kind}: {compared}",
            markup=False,
        )
