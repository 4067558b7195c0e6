"""`Mixture`: several corpora, read in given shares."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np

from pagestream import _native
from pagestream._common.checks import one_of
from pagestream._common.closing import ClosedByWith
from pagestream._common.keywords import advises
from pagestream._common.public import set_module
from pagestream.tokens.corpus import TokenCorpus, open_tokens

__all__ = ["Mixture"]

Exhausted = Literal["repeat", "stop", "drop"]


_MAX_WEIGHT_SUM = _native.MAX_MIXTURE_WEIGHT_SUM
# A warning names a share that is off by more than this fraction of itself.
_ROUNDING_TOLD = Fraction(1, 100)


@set_module("pagestream")
class Mixture(ClosedByWith):
    """Corpora with weights, which a loader reads in these shares.

    The shares hold at every point. After any number of windows, the number from each source differs from its
    share by less than two, and by less than one in a mixture of two or three sources. For example, of 1,000
    windows at weights 0.7 and 0.3, exactly 300 come from the second source. The schedule has a closed form,
    so seeking works to any position, and resuming is exact. Each source has its own order.

    The global batches of a mixture do not depend on the number of ranks, and each rank gets its share of each
    source; see `TokenLoader`. To change weights or sources in mid-run, see `TokenLoader.load_state_dict`.

    Weights are converted to whole numbers with a sum of at most 2^32. Decimal fractions such as 0.7 and 0.3
    become exact ratios, here 7 and 3, if their common denominator allows it. Other weights are rounded.
    `weights` shows the shares in use. If a share is off by more than one percent of itself, a warning names
    the worst.

    Corpora may have different types, for example uint16 and uint32. Batches are int64, or int32 on request.

    ``exhausted`` determines how the stream continues when a source runs out:

    - ``"repeat"``: the source begins its next epoch, in a new order. There is no end: loaders need
      ``epochs=None``.
    - ``"stop"``: the pass ends with the draw of the last window of any source. In the next pass every source
      starts again, in a new order, even if it was not read to its end.
    - ``"drop"``: the other sources continue, in the proportions of their weights, until every window was read
      once.

    Args:
        sources: Pairs of a corpus and its weight, a finite number above 0. The weights need not add up to
            one. In place of a corpus, a pair may contain an argument of `open_tokens`, for example a path.
        exhausted: See above.

    Raises:
        ValueError: There is no source or too many, a weight is invalid, or a word is unknown.
        TypeError: A source is not a pair of a corpus (not a mixture), or its path, and a number.
        OSError: A file cannot be opened.

    Examples:
        >>> from pagestream import Mixture, open_tokens
        >>> tokens = open_tokens("tokens.bin")
        >>> mixture = Mixture([(tokens, 0.7), (tokens, 0.3)], exhausted="stop")
        >>> mixture.weights, mixture.exhausted
        ((0.7, 0.3), 'stop')
        >>> len(Mixture([("tokens.bin", 0.7), (tokens, 0.3)]).sources[0])
        4096
    """

    __slots__ = ("_exhausted", "_sources", "_whole_weights")

    @advises("Mixture")
    def __init__(self, sources: Iterable[tuple[Any, float]], *, exhausted: Exhausted = "repeat") -> None:
        pairs = _pairs(sources)
        if not 1 <= len(pairs) <= _native.MAX_MIXTURE_SOURCES:
            message = f"a mixture has 1 to {_native.MAX_MIXTURE_SOURCES} sources, not {len(pairs)}"
            raise ValueError(message)
        one_of("exhausted", exhausted, _native.EXHAUSTED)
        # Check this before opening files.
        for number, (corpus, _) in enumerate(pairs):
            if not isinstance(corpus, (TokenCorpus, str, bytes, os.PathLike, list, tuple, np.memmap)):
                message = (
                    f"source {number} of a mixture must be a corpus, as from open_tokens, or a path, "
                    f"not {corpus!r}"
                )
                if isinstance(corpus, Mixture):
                    message += "; give its sources, with weights of your own"
                raise TypeError(message)
        exact = [_exact(number, weight) for number, (_, weight) in enumerate(pairs)]
        self._whole_weights = _whole(exact)
        self._sources = tuple(
            corpus if isinstance(corpus, TokenCorpus) else open_tokens(corpus) for corpus, _ in pairs
        )
        _warn_of_rounding(exact, self._whole_weights)
        self._exhausted: Exhausted = exhausted

    @property
    def sources(self) -> tuple[TokenCorpus, ...]:
        """The corpora."""
        return self._sources

    @property
    def weights(self) -> tuple[float, ...]:
        """The shares in use, which add up to one."""
        return tuple(weight / sum(self._whole_weights) for weight in self._whole_weights)

    @property
    def exhausted(self) -> Exhausted:
        """``"repeat"``, ``"stop"`` or ``"drop"``."""
        return self._exhausted

    @property
    def fingerprint(self) -> str:
        """Identifies the mixture: its corpora, shares and policy."""
        facts: list[str] = [self._exhausted]
        for corpus, weight in zip(self._sources, self._whole_weights, strict=True):
            facts += [str(corpus.fingerprint), str(weight)]
        return hashlib.blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()

    def check(self) -> None:
        """Raises if a file of a corpus was replaced or changed since it was opened; see `MappedFile.check`.

        Raises:
            FileChangedError: A file was truncated, extended, rewritten, deleted or replaced.

        Examples:
            >>> from pagestream import Mixture, open_tokens
            >>> Mixture([(open_tokens("tokens.bin"), 1)]).check()
        """
        for corpus in self._sources:
            corpus.check()

    def close(self) -> None:
        """Closes the corpora. Arrays already returned stay valid.

        Examples:
            >>> from pagestream import Mixture, open_tokens
            >>> Mixture([(open_tokens("tokens.bin"), 1)]).close()
        """
        for corpus in self._sources:
            corpus.close()

    @property
    def closed(self) -> bool:
        """Whether all corpora are closed."""
        return all(corpus.closed for corpus in self._sources)

    @property
    def mode(self) -> str:
        """How the files are read; the weakest of the corpora's modes."""
        return self._weakest().mode

    @property
    def reason(self) -> str | None:
        """Why `mode` is not the first choice, or None if it is."""
        return self._weakest().reason

    def _weakest(self) -> TokenCorpus:
        strength = ("read", "private", "shared")
        return min(self.sources, key=lambda corpus: strength.index(corpus.mode))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the corpora, which open their files again, and the whole weights."""
        pairs = [*zip(self._sources, self._whole_weights, strict=True)]
        return partial(type(self), exhausted=self._exhausted), (pairs,)

    def __repr__(self) -> str:
        """Shows the corpora with their shares, and the policy."""
        pairs = zip(self._sources, self.weights, strict=True)
        listed = ", ".join(f"({corpus!r}, {weight:g})" for corpus, weight in pairs)
        return f"{type(self).__name__}([{listed}], exhausted={self._exhausted!r})"


def whole_weights(mixture: Mixture) -> tuple[int, ...]:
    """Returns the shares in use as whole numbers, in lowest terms."""
    return mixture._whole_weights  # noqa: SLF001 - this module's own


def _pairs(sources: Iterable[tuple[Any, float]]) -> list[tuple[Any, float]]:
    # Iterating a corpus would yield all its tokens.
    listed: list[Any] = [sources] if isinstance(sources, (TokenCorpus, Mixture)) else list(sources)
    for number, pair in enumerate(listed):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:  # noqa: PLR2004 - a pair
            message = (
                f"the sources of a mixture are pairs of a corpus and its weight, [(tokens, 0.7), ...]; "
                f"source {number} is {pair!r}"
            )
            raise TypeError(message)
    return [(corpus, weight) for corpus, weight in listed]


def _exact(number: int, weight: float) -> Fraction:
    """Returns the number as it was written: 0.7 is seven tenths, not the nearest binary fraction."""
    if isinstance(weight, (str, bytes, bool)) or not hasattr(weight, "__float__"):
        message = f"the weight of source {number} must be a number, not {weight!r}"
        raise TypeError(message)
    try:
        exact = Fraction(str(weight))
    except ValueError:
        exact = Fraction(0)
    if exact <= 0:
        message = f"the weight of source {number} must be a finite number above 0, not {weight!r}"
        raise ValueError(message)
    return exact


def _warn_of_rounding(weights: list[Fraction], whole: tuple[int, ...]) -> None:
    asked_sum, kept_sum = sum(weights), sum(whole)
    errors = [
        abs(kept * asked_sum / (kept_sum * weight) - 1) for weight, kept in zip(weights, whole, strict=True)
    ]
    told = sum(error > _ROUNDING_TOLD for error in errors)
    if told:
        worst = errors.index(max(errors))
        others = f", and {told - 1} more are off by more than one percent" if told > 1 else ""
        message = (
            f"source {worst} has a weight of {float(weights[worst] / asked_sum):.3g} of the mixture, which "
            f"becomes {whole[worst] / kept_sum:.3g}{others}: shares are multiples of 2^-32; "
            "leave out sources that small"
        )
        warnings.warn(message, UserWarning, stacklevel=4)


def _whole(weights: list[Fraction]) -> tuple[int, ...]:
    """Returns whole numbers in lowest terms with these ratios, or the nearest ones with the largest sum."""
    denominator = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * denominator) for weight in weights]
    divisor = math.gcd(*whole)
    whole = [weight // divisor for weight in whole]
    total = sum(whole)
    if total > _MAX_WEIGHT_SUM:
        # Each source needs at least 1. The largest remainders determine the rest.
        left = _MAX_WEIGHT_SUM - len(whole)
        wanted = [max(Fraction(weight * _MAX_WEIGHT_SUM, total) - 1, Fraction(0)) for weight in whole]
        wanted = [share * left / sum(wanted) for share in wanted]
        whole = [1 + math.floor(share) for share in wanted]
        remainders = sorted(range(len(whole)), key=lambda source: math.floor(wanted[source]) - wanted[source])
        for source in remainders[: _MAX_WEIGHT_SUM - sum(whole)]:
            whole[source] += 1
        divisor = math.gcd(*whole)
        whole = [weight // divisor for weight in whole]
    return tuple(whole)
