"""Megatron indexes that are views: they reorder, omit or repeat the sequences of the file."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pagestream import TokenLoader, open_tokens
from pagestream.cli._app import app
from pagestream.errors import FormatError
from pagestream.torch import TokenDataset

from support.token_files import tokens_of
from support.token_formats import write_megatron

LENGTHS = np.random.default_rng(5).integers(0, 30, 210)
ENDS = np.cumsum(LENGTHS)
# No sequence contains the last tokens.
TOKENS = tokens_of("<u2", int(ENDS[-1]) + 100)
MODES = ["shared", "private", "read"]


def write_view(stem, order, documents=None):
    """Writes a pair whose index lists sequences of `TOKENS` in this order. Returns its stem and tokens."""
    order = np.asarray(order, int)
    firsts = ENDS - LENGTHS
    listed = [TOKENS[firsts[number] : ENDS[number]] for number in order]
    stem = write_megatron(stem, TOKENS, LENGTHS[order], documents, pointers=firsts[order] * 2)
    return stem, listed


def orders():
    everything = np.arange(len(LENGTHS))
    random = np.random.default_rng(1)
    return {
        "shuffled": random.permutation(everything),
        "filtered": everything[random.random(len(everything)) < 0.8],
        "repeated": np.concatenate([everything, everything, everything[20:90]]),
        "reversed": everything[::-1],
        "sampled": random.integers(0, len(everything), 500),
        "only empty ones between": [3, *np.flatnonzero(LENGTHS == 0), 4],
        "the second half": everything[100:],
        "one": [7],
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", orders())
def test_tokens_and_documents_are_those_of_the_index_in_its_order(tmp_path, order, mode):
    stem, listed = write_view(tmp_path / "t", orders()[order])
    expected = np.concatenate(listed)
    tokens = open_tokens(stem, mmap_mode=mode)
    assert tokens.shards[0].is_view
    assert len(tokens) == tokens.shards[0].tokens == len(expected)
    np.testing.assert_array_equal(tokens[:], expected)
    assert len(tokens.documents) == len(listed)
    for document, content in zip(tokens.documents, listed, strict=True):
        np.testing.assert_array_equal(document, content)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(tokens))[:], expected)


@pytest.mark.filterwarnings("ignore:.*lists the first:UserWarning")
@settings(max_examples=60)
@given(order=st.lists(st.integers(0, len(LENGTHS) - 1), min_size=1, max_size=300), data=st.data())
def test_any_range_of_any_order(tmp_path_factory, order, data):
    stem, listed = write_view(tmp_path_factory.mktemp("view") / "t", order)
    expected = np.concatenate(listed)
    if not len(expected):
        with pytest.raises(FormatError, match="the index lists 0 tokens"):
            open_tokens(stem)
        return
    tokens = open_tokens(stem)
    for _ in range(10):
        start = data.draw(st.integers(0, len(expected)))
        stop = data.draw(st.integers(start, len(expected)))
        np.testing.assert_array_equal(tokens[start:stop], expected[start:stop])
    np.testing.assert_array_equal(tokens.documents.starts[1:], np.cumsum([len(each) for each in listed]))


@pytest.mark.parametrize("options", [{}, {"documents": "boundaries"}, {"dtype": "raw"}, {"target": "none"}])
@pytest.mark.parametrize("mode", MODES)
def test_batches_are_windows_of_the_view(tmp_path, mode, options):
    stem, listed = write_view(tmp_path / "t", orders()["sampled"])
    view = TokenLoader(
        open_tokens(stem, mmap_mode=mode), sequence_length=64, batch_size=4, epochs=1, **options
    )
    plain = write_megatron(tmp_path / "plain", np.concatenate(listed), [len(each) for each in listed])
    flat = TokenLoader(plain, sequence_length=64, batch_size=4, epochs=1, **options)
    with view, flat:
        batches = list(zip(view, flat, strict=True))
        for one, other in batches:
            np.testing.assert_array_equal(one[0], other[0])
            if options.get("target") != "none":
                np.testing.assert_array_equal(one[1], other[1])
            if "documents" in options:
                np.testing.assert_array_equal(one.cu_seqlens, other.cu_seqlens)
    assert len(batches) > 5


def test_datasets_and_several_files_follow_views_too(tmp_path):
    first, one = write_view(tmp_path / "a", orders()["shuffled"])
    second = write_megatron(tmp_path / "b", TOKENS, [*LENGTHS, 100])
    third, other = write_view(tmp_path / "c", orders()["filtered"])
    expected = np.concatenate([*one, TOKENS, *other])
    tokens = open_tokens([f"{stem}.bin" for stem in (first, second, third)])
    assert [shard.is_view for shard in tokens.shards] == [True, False, True]
    np.testing.assert_array_equal(tokens[:], expected)
    dataset = TokenDataset(tokens, sequence_length=50, stride=50)
    for number in range(len(dataset)):
        np.testing.assert_array_equal(dataset[number][0], expected[number * 50 : number * 50 + 50])


def test_one_sequence_out_of_place_is_followed_and_shown(tmp_path):
    stem = write_megatron(tmp_path / "t", TOKENS[:9], [2, 2, 4], pointers=[0, 6, 10])
    assert open_tokens(stem)[:].tolist() == [*TOKENS[:2], *TOKENS[3:5], *TOKENS[5:9]]
    shown = CliRunner().invoke(app, ["info", f"{stem}.bin"])
    assert "reorders, leaves out or repeats sequences" in " ".join(shown.output.split())


def test_pointers_that_wrapped_at_2_gib_are_not_a_view(tmp_path):
    # Their sums overflow 32 bits: the third sequence begins at byte 2^32, and its pointer is 0.
    lengths, pointers = [2**30, 2**30, 5], [0, -(2**31), 0]
    stem = write_megatron(tmp_path / "t", TOKENS[:0], lengths, pointers=pointers)
    os.truncate(f"{stem}.bin", 2**32 + 10)
    with pytest.raises(FormatError, match=r"sequence 1 begins at byte -2147483648 .* NumPy 2"):
        open_tokens(stem)
    stem = write_megatron(tmp_path / "u", TOKENS[:0], [2**31 - 1, 1, 5], pointers=[0, 2**32 - 2, 0])
    os.truncate(f"{stem}.bin", 2**32 + 10)
    with pytest.raises(FormatError, match=r"sequence 2 begins at byte 0 .*, expected 4294967296"):
        open_tokens(stem)


def test_an_index_of_the_beginning_of_the_file_is_opened_with_a_warning(tmp_path):
    stem = write_megatron(tmp_path / "t", TOKENS[:20], [2, 3, 4])
    with pytest.warns(UserWarning, match=r"t\.bin: the Megatron index lists the first 9 tokens of 20"):
        tokens = open_tokens(stem)
    assert tokens[:].tolist() == TOKENS[:9].tolist()


@pytest.mark.parametrize(
    ("lengths", "pointers", "told"),
    [
        ([100] * 3 + [105] + [100] * 6, range(0, 2000, 200), (4, 800, 600, 810)),
        ([100] * 10, [0, 200, 400, 610, *range(800, 2000, 200)], (4, 800, 610, 810)),
        # These pointers count tokens.
        ([100] * 10, range(0, 1000, 100), (1, 100, 0, 200)),
        # The empty sequence between the two others is no gap.
        ([100, 0, 100], [0, 500, 198], (2, 198, 0, 200)),
    ],
)
def test_a_sequence_that_begins_inside_the_one_before_it_gets_a_warning(tmp_path, lengths, pointers, told):
    stem = write_megatron(tmp_path / "t", TOKENS[:1000], lengths, pointers=pointers)
    number, place, start, end = told
    found = (
        rf"^{tmp_path}/t\.idx: sequence {number} begins at byte {place} of the \.bin, inside the sequence "
        rf"before it in the index, which has the bytes {start} to {end}; "
        r".* trained on twice, so build the index again"
    )
    for _ in range(2):  # the second time, the index need not be checked again
        with pytest.warns(UserWarning, match=found) as caught:
            tokens = open_tokens(f"{stem}.bin")
        assert [warning.filename for warning in caught] == [__file__]
    assert len(tokens) == sum(lengths)
    for command in ("info", "verify"):
        with pytest.warns(UserWarning, match=found):
            assert CliRunner().invoke(app, [command, f"{stem}.bin"]).exit_code == 0


@pytest.mark.parametrize(
    ("lengths", "pointers"),
    [
        ([10, 10, 10], [0, 0, 20]),
        ([10, 20, 10, 10], [0, 0, 0, 40]),  # the longer one begins where the previous one does
        ([10, 10, 10], [40, 20, 0]),
        ([10, 0, 10], [0, 10, 20]),  # an empty sequence has no tokens to repeat
    ],
)
def test_other_orders_get_no_warning(tmp_path, lengths, pointers):
    stem = write_megatron(tmp_path / "t", TOKENS[:100], lengths, pointers=pointers)
    assert len(open_tokens(stem)) == sum(lengths)


@pytest.mark.parametrize("places", [(0, 1), (200, 300)])
def test_a_fingerprint_covers_the_whole_order(tmp_path, places):
    # All sequences have one length, so lengths, sizes and the end of the index stay the same.
    seen = set()
    order = np.random.default_rng(2).permutation(500)
    for _ in range(2):
        stem = write_megatron(tmp_path / "t", TOKENS[:1500], np.full(500, 3), pointers=order * 6)
        seen.add(open_tokens(stem).fingerprint)
        order[list(places)] = order[list(places[::-1])]
    assert len(seen) == 2


def test_an_index_that_changes_while_it_is_open_raises(tmp_path):
    stem, _ = write_view(tmp_path / "t", orders()["shuffled"])
    tokens = open_tokens(stem)
    content = bytearray((tmp_path / "t.idx").read_bytes())
    with open(tmp_path / "t.idx", "r+b") as file:
        file.write(content)
        os.utime(file.fileno(), (1, 1))
    with pytest.raises(OSError, match=r"t\.idx"):
        tokens[:100]
