"""While its file does not change, an index is checked only once. Reopening it reads little."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

from pagestream import open_tokens
from pagestream.errors import FormatError

from support.token_files import tokens_of
from support.token_formats import write_megatron

pytestmark = pytest.mark.slow

# `state_cache.rs` keeps results of files that stayed unchanged for more than two whole seconds.
SETTLED_SECONDS = 3.1
SEQUENCES = 50_000
TOKENS = tokens_of("<u2", 2 * SEQUENCES)
LENGTHS = np.full(SEQUENCES, 2)
INDEX_BYTES = 20 * SEQUENCES
ORDERS = {"in order": np.arange(SEQUENCES), "reversed": np.arange(SEQUENCES)[::-1]}
KINDS = [*ORDERS, "changed", "other tokens"]


def write(stem, order):
    return Path(write_megatron(stem, TOKENS, LENGTHS, pointers=4 * order))


def bytes_read():
    with open("/proc/self/io") as counters:
        return int(re.search(r"rchar: (\d+)", counters.read())[1])


def read_by(action):
    """Returns the action's result, and the number of bytes that this process reads for it."""
    before = bytes_read()
    result = action()
    return result, bytes_read() - before


def opened(stem):
    return read_by(lambda: open_tokens(stem, mmap_mode="read"))


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """Makes pairs that are settled and have been opened before."""
    folder = tmp_path_factory.mktemp("settled")
    stems = {kind: write(folder / kind, ORDERS.get(kind, ORDERS["reversed"])) for kind in KINDS}
    # The first open records the file's state. The second open finds it unchanged and caches its results.
    for stem in stems.values():
        assert opened(stem)[1] > 12 * SEQUENCES
    time.sleep(SETTLED_SECONDS)
    for stem in stems.values():
        open_tokens(stem, mmap_mode="read")
    return stems


@pytest.mark.parametrize("order", ORDERS)
def test_sequences_and_documents_are_checked_once(settled, order):
    tokens, read = opened(settled[order])
    assert read < INDEX_BYTES // 10
    np.testing.assert_array_equal(tokens[:], TOKENS.reshape(-1, 2)[ORDERS[order]].ravel())
    document, read = read_by(lambda: tokens.documents[1])
    assert read > 8 * SEQUENCES
    for corpus in (tokens, opened(settled[order])[0]):
        again, read = read_by(lambda corpus=corpus: corpus.documents[1])
        assert read < INDEX_BYTES // 10
        np.testing.assert_array_equal(again, document)


def test_an_index_that_was_changed_is_checked_anew(settled):
    stem = settled["changed"]
    index = stem.with_suffix(".idx")
    before, tokens = index.stat(), open_tokens(stem)[:]
    pointers = 4 * np.roll(ORDERS["reversed"], 1)
    with open(index, "r+b") as file:
        file.seek(34 + 4 * SEQUENCES)
        file.write(pointers.astype("<i8").tobytes())
    os.utime(index, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (index.stat().st_size, index.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    again, read = opened(stem)
    assert read > 12 * SEQUENCES
    np.testing.assert_array_equal(again[:], np.roll(tokens, 2))


def test_entries_are_checked_against_the_tokens_that_there_are(settled):
    stem = settled["other tokens"]
    os.truncate(stem.with_suffix(".bin"), 2 * len(TOKENS) - 2)
    with pytest.raises(FormatError, match="sequence 0 has 2 tokens and ends at byte"):
        open_tokens(stem)
