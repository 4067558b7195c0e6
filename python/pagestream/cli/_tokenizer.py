"""The tokenizer of ``pagestream tokenize``, and places to split a text without changing its tokens."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# The tokenizer needs more than a hundred times the memory of the text that it encodes at once.
PIECE_CHARS = 32 << 10
LARGEST_PIECE_CHARS = 64 << 20
# How Llama 3 and similar models (with numbers of up to three digits) and Qwen (of one digit) split text into
# words.
_WORDS = tuple(
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}{1,3}", r"\p{N}")
)
# Letters in every version of Unicode: Latin, Greek, Cyrillic, Hebrew, Arabic, Devanagari, kana, Chinese,
# Hangul.
_LETTER = (
    r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u0391-\u03a1\u03a3-\u03c9\u0410-\u044f\u05d0-\u05ea\u0621-\u063a"
    r"\u0641-\u064a\u0905-\u0939\u3041-\u3094\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
)
# Between a letter and a space before another letter; and after a line that does not end in a space, before a
# letter.
_CUT = re.compile(
    f"[{_LETTER}](?= [{_LETTER}])|[!-~{_LETTER}\u3001\u3002\u300d\u300f\uff01\uff1f]\n(?=[{_LETTER}])"
)


def load(path: str) -> tuple[Any, str]:
    """Returns the tokenizer of a file and the SHA-256 of the file.

    The tokenizer encodes texts as they are: neither cut off nor padded.

    Raises:
        ImportError: tokenizers is not installed.
        OSError: There is no such file.
        ValueError: The file is not a ``tokenizer.json``.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        message = "tokenize needs tokenizers: pip install 'pagestream[tokenize]'"
        raise ImportError(message) from error
    with open(path, "rb") as file:
        content = file.read()
    try:
        loaded = Tokenizer.from_buffer(content)
    except Exception as error:
        # It raises no specific class.
        message = f"{path}: not a tokenizer.json: {error}"
        raise ValueError(message) from error
    loaded.no_truncation()
    loaded.no_padding()
    return loaded, hashlib.sha256(content).hexdigest()


def cuts_between_words(tokenizer: Any) -> bool:  # noqa: ANN401 - tokenizers has no types
    """Returns whether a text keeps its tokens when it is split as in `pieces`.

    This holds for the patterns of GPT-2, Llama 3 and Qwen, whatever the context: the letters before the space
    end a word, and the space begins the next one. A single line end never forms a word with the letter after
    it, and each word is encoded separately. It does not hold if an added token of the vocabulary contains a
    space or absorbs adjacent spaces.
    """
    facts = json.loads(tokenizer.to_str())
    # NFC changes nothing before a space or after a line end.
    if facts["normalizer"] not in (None, {"type": "NFC"}):
        return False
    for token in facts["added_tokens"]:
        if re.search(r"\s", token["content"]) or token["lstrip"] or token["rstrip"]:
            return False
    return _splits_words(facts["pre_tokenizer"])


def _splits_words(step: dict[str, Any] | None) -> bool:
    if step is None:
        return False
    if step["type"] == "ByteLevel":
        return step["use_regex"] and not step["add_prefix_space"]
    match step.get("pretokenizers"):
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            return pattern in _WORDS
    return False


def pieces(text: str) -> Iterator[str]:
    """Yields a text in pieces of `PIECE_CHARS` or more, up to a space between letters or a line end."""
    start = 0
    while found := _CUT.search(text, start + PIECE_CHARS - 1):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]
