"""Checks of arguments that several classes take."""

from __future__ import annotations

import operator
import os
import sys
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from pagestream import _environment
from pagestream._loader_options import BatchDtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized

    from pagestream.tokens import TokenCorpus


def at_least(least: int, name: str, value: object) -> int:
    """The integer, if it is one and in range."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        message = f"{name} must be an integer, not {value!r}"
        raise TypeError(message)
    number = operator.index(value)
    if not least <= number < 1 << 63:
        limit = f"at least {least}" if number < least else "below 2^63"
        message = f"{name} must be {limit}, not {number}"
        raise ValueError(message)
    return number


def one_of(name: str, value: object, words: tuple[str, ...]) -> None:
    """Refuses other words, and what is no word."""
    if not isinstance(value, str) or value not in words:
        listed = ", ".join(f'"{word}"' for word in words)
        message = f"{name} is one of {listed}, not {value!r}"
        raise (ValueError if isinstance(value, str) else TypeError)(message)


def batch_dtype(value: object) -> Any:  # noqa: ANN401 - a BatchDtype
    """The word for a type of batches; NumPy's own name for it is as good."""
    if isinstance(value, type) and issubclass(value, np.generic):
        value = np.dtype(value)
    word = value.name if isinstance(value, np.dtype) and value.isnative else value
    one_of("dtype", word, get_args(BatchDtype))
    return word


def let_go_of(drop_behind: object, corpora: Iterable[TokenCorpus]) -> None:
    """Refuses a ``drop_behind`` that there is not, or that would have no effect."""
    if drop_behind is None:
        return
    one_of("drop_behind", drop_behind, ("resident", "cache"))
    # Where "auto" had to step down, the same program has an effect on another mount.
    if drop_behind == "resident" and all(
        shard.mode == "read" and shard.reason is None for corpus in corpora for shard in corpus.shards
    ):
        message = (
            'drop_behind="resident" has no effect with mmap_mode="read": nothing is mapped; '
            'use "cache", or leave it out'
        )
        raise ValueError(message)


def yes_or_no(name: str, value: object) -> bool:
    """The bool, if it is one."""
    if not isinstance(value, bool):
        message = f"{name} must be True or False, not {value!r}"
        raise TypeError(message)
    return value


def only_with(name: str, value: object, *, needed: bool, needs: str) -> None:
    """Refuses an argument that would have no effect."""
    if value is not None and not needed:
        message = f"{name}={value!r} has no effect without {needs}"
        raise ValueError(message)


def longer_than(span_tokens: int, corpora: Iterable[Sized]) -> None:
    """Refuses corpora that have no window of so many tokens."""
    for corpus in corpora:
        if len(corpus) < span_tokens:
            message = (
                f"a window takes {span_tokens} tokens with its targets, but {corpus!r} has {len(corpus)}; "
                "use a shorter sequence_length, or more files"
            )
            raise ValueError(message)


def radius(asked: int | None, window_bytes: int) -> int:
    """``mixing_radius`` in windows: the one given, else a span that storage reads well in one go."""
    return max(16, (64 << 20) // window_bytes) if asked is None else at_least(1, "mixing_radius", asked)


def place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: those given, else those of torch.distributed or of the environment."""
    if (rank is None) != (world_size is None):
        message = "rank and world_size go together: pass both or none"
        raise ValueError(message)
    if rank is not None and world_size is not None:
        return at_least(0, "rank", rank), at_least(1, "world_size", world_size)
    # Only a process that has imported torch can have set it up.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    ranks = _environment.number("WORLD_SIZE", 1, least=1)
    own = _environment.number("RANK", 0 if ranks == 1 else -1, least=0)
    if not 0 <= own < ranks:
        found = "is not set" if own < 0 else f"is {own}"
        given = f"is {ranks}" if "WORLD_SIZE" in os.environ else "is not set"
        message = f"WORLD_SIZE {given}, but RANK {found}; set both, or pass rank and world_size"
        raise ValueError(message)
    return own, ranks
