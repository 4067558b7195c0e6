"""The ends of a part of a corpus: tokens or fractions."""

from __future__ import annotations

import operator
from fractions import Fraction

import numpy as np


def part_range(start: float, stop: float, tokens: int) -> tuple[int, int]:
    """Returns the first token of a part, and the token after its last one.

    Args:
        start: See `TokenCorpus.part`.
        stop: See `TokenCorpus.part`.
        tokens: Number of tokens in the whole corpus.

    Raises:
        ValueError: The part does not lie within the corpus, or only one of its ends is a fraction.
        TypeError: An end is not a number.
    """
    places = (start, stop)
    if any(isinstance(place, (float, np.floating)) for place in places):
        for place in places:
            if not 0 <= place <= 1:
                message = (
                    f"part({start!r}, {stop!r}): beside a fraction, both ends must be fractions from 0 to 1; "
                    f"for tokens, pass integers up to {tokens}"
                )
                raise ValueError(message)
        # Exact arithmetic, so that equal fractions of two parts meet at the same token.
        first, after = (round(Fraction(float(place)) * tokens) for place in places)
    else:
        first, after = (operator.index(place) for place in places)  # type: ignore[arg-type]
    if not 0 <= first <= after <= tokens:
        message = (
            f"part({start!r}, {stop!r}) is tokens {first} to {after} of {tokens}; the start must be at least "
            "0 and at most the stop, and the stop at most the number of tokens"
        )
        raise ValueError(message)
    return first, after
