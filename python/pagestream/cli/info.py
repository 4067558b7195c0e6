"""``pagestream info``: the content of a token file, a safetensors file or a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from pagestream._common.amounts import count, size
from pagestream.cli import _codes, _console, _output
from pagestream.cli._arguments import All, AsJson, Dtype, checked_dtype
from pagestream.cli._folder import folder_warnings
from pagestream.cli._ids import id_ranges
from pagestream.cli._target import opened, problem_of
from pagestream.cli._token_holes import hole_warnings
from pagestream.files.mapped_file import MappedFile
from pagestream.tokens.corpus import Format
from pagestream.weights import summary
from pagestream.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    from rich.console import Console

    from pagestream.cli._ids import IdRange
    from pagestream.tokens.corpus import TokenCorpus

# Numbers of tensors, shards and tokens that are shown without `--all`.
_SHOWN, _FIRST_TOKENS = 10, 16
# Metadata may contain whole licences.
_LONGEST = 200


def info(
    path: Annotated[str, typer.Argument(help="A file, a folder, an index, a pattern, or a Hugging Face id.")],
    dtype: Dtype = None,
    format: Annotated[Format | None, typer.Option(help="The format of token files.")] = None,
    largest: Annotated[
        bool, typer.Option("--largest", help="Read all tokens, and print the largest id of each file.")
    ] = False,
    all_: All = False,
    as_json: AsJson = False,
) -> None:
    """Show the content of a token file, a safetensors file or a checkpoint.

    Example: pagestream info model.safetensors
    """
    found = opened(path, checked_dtype(dtype), format, ahead=False, partly=True)
    if largest and isinstance(found, Checkpoint):
        message = f"{path}: --largest is for token files, but these are safetensors weights"
        raise ValueError(message)
    facts = _of_weights(found) if isinstance(found, Checkpoint) else _of_tokens(found, largest=largest)
    facts["warnings"] += folder_warnings(path, of_weights=isinstance(found, Checkpoint))
    if as_json:
        _output.print_json(facts)
    elif isinstance(found, Checkpoint):
        _print_weights(_console.console(), found, facts, all_=all_)
    else:
        _print_tokens(_console.console(), found, facts, all_=all_)
    if facts.get("problem"):
        raise typer.Exit(_codes.BAD)


def _of_weights(weights: Checkpoint) -> dict[str, Any]:
    tensors = [weights.info(name) for name in weights]
    return {
        "kind": "safetensors",
        "files": weights.files,
        "tensors": tensors,
        "nbytes": sum(tensor.nbytes for tensor in tensors),
        "metadata": weights.metadata,
        "index_metadata": weights.index_metadata,
        "warnings": weights.warnings,
        "problem": problem_of(weights),
    }


def _print_weights(console: Console, weights: Checkpoint, facts: dict[str, Any], *, all_: bool) -> None:
    tensors = [weights.info(name) for name in weights]
    total_bytes = sum(tensor.nbytes for tensor in tensors)
    console.print(
        f"safetensors: {count(len(tensors), 'tensor')}, {size(total_bytes)}, "
        f"in {count(len(weights.files), 'file')}"
    )
    for title, metadata in (("metadata", weights.metadata), ("index", weights.index_metadata)):
        for key, value in (metadata or {}).items():
            console.print(f"  {title}: {key} = {_shortened(str(value))}")
    _console.print_warnings(console, facts["warnings"])
    types = _console.table("dtype", "tensors", "elements", "size", right=("tensors", "elements", "size"))
    for group in summary.by_dtype(tensors):
        types.add_row(group.dtype, f"{group.tensors:,}", f"{group.elements:,}", size(group.nbytes))
    console.print(types)
    shown = summary.largest(tensors, len(tensors) if all_ else _SHOWN)
    largest = _console.table("tensor", "dtype", "shape", "size", right=("size",))
    for tensor in shown:
        largest.add_row(tensor.name, tensor.dtype, str(list(tensor.shape)), size(tensor.nbytes))
    if shown:
        console.print(largest)
    if len(shown) < len(tensors):
        console.print(f"… and {count(len(tensors) - len(shown), 'smaller tensor')}: --all shows them")
    _console.print_problem(console, problem_of(weights))


def _of_tokens(tokens: TokenCorpus, *, largest: bool) -> dict[str, Any]:
    first = tokens.read(0, min(_FIRST_TOKENS, len(tokens)))
    documents = tokens.documents
    ids = {"ids": id_ranges(tokens)} if largest else {}
    return {
        "kind": "tokens",
        "format": tokens.shards[0].format,
        "dtype": tokens.dtype.name,
        "tokens": len(tokens),
        "documents": None if documents is None else len(documents),
        "nbytes": len(tokens) * tokens.dtype.itemsize,
        "fingerprint": tokens.fingerprint,
        "first_tokens": first.tolist(),
        "shards": tokens.shards,
        "warnings": hole_warnings(tokens),
        **ids,
    }


def _print_tokens(console: Console, tokens: TokenCorpus, facts: dict[str, Any], *, all_: bool) -> None:
    shards = tokens.shards
    console.print(
        f"{facts['format']} tokens: {count(len(tokens), 'token')} of {tokens.dtype}, "
        f"{size(facts['nbytes'])}, in {count(len(shards), 'file')}"
    )
    if facts["format"] == "raw":
        console.print("  raw files do not say their type: use --dtype to name another one")
    documents = tokens.documents
    if documents is not None and len(documents):
        lengths = np.diff(documents.starts)
        console.print(
            f"  {count(len(documents), 'document')}: {int(lengths.min()):,} to {int(lengths.max()):,} "
            f"tokens, median {int(np.median(lengths)):,}"
        )
    console.print(f"  first: {' '.join(map(str, facts['first_tokens']))}")
    shown = shards if all_ else shards[:_SHOWN]
    ids = facts.get("ids")
    more = ("largest id",) if ids else ()
    files = _console.table("file", "tokens", "size", "mode", *more, right=("tokens", "size", *more))
    for number, shard in enumerate(shown):
        with MappedFile(shard.path) as file:
            row = [_output.short(shard.path), f"{shard.tokens:,}", size(file.size), shard.mode]
        files.add_row(*row, *([_largest(ids[number])] if ids else []))
    console.print(files)
    if len(shown) < len(shards):
        console.print(f"… and {count(len(shards) - len(shown), 'file')} more: --all shows them")
    views = sum(shard.is_view for shard in shards)
    if views:
        console.print(
            f"  {count(views, 'file')} with a Megatron index that reorders, leaves out or repeats sequences"
        )
    for reason in dict.fromkeys(shard.reason for shard in shards if shard.reason):
        console.print(f"  not mapped shared: {reason}")
    _console.print_warnings(console, facts["warnings"])


def _largest(ids: IdRange | None) -> str:
    if ids is None:
        return "no tokens"
    return str(ids.largest) if ids.smallest >= 0 else f"{ids.largest}, smallest {ids.smallest}"


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
