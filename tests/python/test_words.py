"""The option words of type hints equal the words of the core, and refusals list them."""

from typing import get_args

import pytest

from pagestream import _native
from pagestream._common import types
from pagestream._common.checks import listed, one_of
from pagestream.files import mapped_file, staging
from pagestream.loading import mixture, options
from pagestream.tokens import corpus
from pagestream.weights import streaming

HINTS = {
    "ADVICE": mapped_file.Advice,
    "BATCH_DTYPES": options.BatchWord,
    "DROP_BEHIND": options.DropBehind,
    "EXHAUSTED": mixture.Exhausted,
    "FORMATS": corpus.Format,
    "HUGE_PAGES": staging.HugePages,
    "MODES": types.Mode,
    "ORDERS": options.Order,
    "PROTECTIONS": staging.Protection,
    "STRATEGIES": streaming.Strategy,
    "TARGETS": options.Target,
}

# These are words of an environment variable, and type names, of which NumPy knows more.
WITHOUT_HINT = {"FAULT_GUARDS", "TOKEN_DTYPES"}


def test_all_words_of_the_core_have_a_hint():
    words = {name for name, value in vars(_native).items() if isinstance(value, tuple)}
    assert words == HINTS.keys() | WITHOUT_HINT


@pytest.mark.parametrize("name", HINTS)
def test_a_hint_has_the_words_of_the_core(name):
    assert get_args(HINTS[name]) == getattr(_native, name)


def test_words_are_listed_as_a_sentence():
    assert [listed(words) for words in (("a",), ("a", "b"), ("a", "b", "c"))] == [
        '"a"',
        '"a" or "b"',
        '"a", "b" or "c"',
    ]


def test_a_refusal_has_one_wording_in_both_languages():
    with pytest.raises(ValueError, match="target must be") as ours:
        one_of("target", "all", _native.TARGETS)
    with pytest.raises(ValueError, match="mode must be") as cores:
        _native.MappedFile(b"file", "all")
    assert str(ours.value) == 'target must be "shift", "block" or "none", not \'all\''
    assert str(cores.value) == 'mode must be "auto", "shared", "private" or "read", not \'all\''
    with pytest.raises(TypeError, match=r"target must be .*, not 3"):
        one_of("target", 3, _native.TARGETS)
