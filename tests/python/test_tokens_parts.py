"""Parts of a corpus: training and validation tokens in one file."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

from pagestream import Mixture, TokenLoader, open_tokens
from pagestream.errors import FormatError, StateMismatchError

from support.token_files import write_shards, write_tokens
from support.token_formats import write_megatron

TOKENS = np.arange(1000, dtype="<u2")


@pytest.fixture
def corpus(tmp_path):
    return open_tokens(write_shards(tmp_path, TOKENS, [400, 0, 350, 250]))


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((0, 0.9), (0, 900)),
        ((0.9, 1), (900, 1000)),
        ((0.29, 0.57), (290, 570)),  # 0.29 * 1000 is below 290 in binary
        ((np.float32(0.5), np.float64(1.0)), (500, 1000)),
        ((0.0004, 0.0006), (0, 1)),
        ((0, 900), (0, 900)),
        ((np.int64(900), 1000), (900, 1000)),
        ((0, 1), (0, 1)),
        ((7, 7), (7, 7)),
        ((0, 1000), (0, 1000)),
        ((0.0, 1.0), (0, 1000)),
    ],
)
def test_ends_are_tokens_or_fractions(corpus, ends, expected):
    part = corpus.part(*ends)
    assert np.asarray(part).tolist() == TOKENS[slice(*expected)].tolist()
    assert len(part) == expected[1] - expected[0]


@pytest.mark.parametrize(
    ("ends", "error", "message"),
    [
        ((0.5, 900), ValueError, "both ends must be fractions"),
        ((900, 1.0), ValueError, "both ends must be fractions"),
        ((-0.1, 0.5), ValueError, "fractions from 0 to 1"),
        ((0.0, float("nan")), ValueError, "fractions from 0 to 1"),
        ((0.9, 0.1), ValueError, "tokens 900 to 100 of 1000"),
        ((0, 1001), ValueError, "at most the number of tokens"),
        ((-1, 10), ValueError, "must be at least 0"),
        ((0, 1 << 70), ValueError, "at most the number of tokens"),
        (("0", 10), TypeError, "integer"),
        ((0, None), TypeError, "integer"),
    ],
)
def test_other_ends_are_refused(corpus, ends, error, message):
    with pytest.raises(error, match=message):
        corpus.part(*ends)


@pytest.mark.parametrize("target", ["shift", "block", "none"])
@pytest.mark.parametrize("order", ["shuffled", "random", "sequential", "blocked"])
def test_no_window_has_a_token_of_another_part(corpus, order, target):
    cut = 537
    for part, tokens in ((corpus.part(0, cut), range(cut)), (corpus.part(cut, 1000), range(cut, 1000))):
        seen = set()
        with TokenLoader(
            part, sequence_length=8, batch_size=4, order=order, target=target, stride=1, epochs=3
        ) as loader:
            for batch in loader:
                for array in (batch,) if target == "none" else batch:
                    seen.update(array.ravel().tolist())
        assert seen <= set(tokens)
        # Both ends are used.
        assert order == "random" or {tokens[0], tokens[-1]} <= seen


def test_a_part_has_the_shards_that_it_needs(corpus):
    part = corpus.part(390, 760)
    assert [(shard.file_start, shard.tokens, shard.start, shard.file_tokens) for shard in part.shards] == [
        (390, 10, 0, 400),
        (0, 0, 10, 0),
        (0, 350, 10, 350),
        (0, 10, 360, 250),
    ]
    assert [shard.tokens for shard in corpus.part(400, 750).shards] == [350]
    assert part.part(5, 12)[:].tolist() == list(range(395, 402))
    assert part.mode == "shared"


def test_a_slice_within_one_file_is_still_a_view(corpus):
    view = corpus.part(410, 600)[5:10]
    assert view.tolist() == [415, 416, 417, 418, 419]
    assert view.base is not None
    assert not view.flags.writeable


def test_parts_pickle_with_their_files_alone(corpus):
    part = corpus.part(390, 700)
    again = pickle.loads(pickle.dumps(part))
    assert again[:].tolist() == part[:].tolist()
    assert (repr(again), again.fingerprint) == (repr(part), part.fingerprint)
    last = pickle.loads(pickle.dumps(corpus.part(900, 1000)))
    assert [shard.path for shard in last.shards] == [corpus.shards[3].path]
    assert last[:].tolist() == list(range(900, 1000))


def test_a_repr_tells_parts_apart(tmp_path):
    path = write_tokens(tmp_path / "t.bin", TOKENS)
    tokens = open_tokens(path)
    assert repr(tokens.part(100, 1000)) == (
        f"<TokenCorpus 900 uint16 tokens in {path}, tokens 100 to 1000 of 1000>"
    )
    assert repr(tokens.part(0, 1000)) == repr(tokens)


def test_a_state_belongs_to_its_part(corpus):
    def loader(part):
        return TokenLoader(part, sequence_length=8, batch_size=2)

    with loader(corpus.part(0, 500)) as first, loader(corpus.part(500, 1000)) as second:
        next(first)
        state = first.state_dict()
        with pytest.raises(StateMismatchError, match="fingerprint"):
            second.load_state_dict(state)
    with loader(corpus.part(0, 0.5)) as again:
        again.load_state_dict(state)
        assert again.state_dict() == state


def test_a_mixture_takes_parts(corpus):
    mixture = Mixture([(corpus.part(0, 0.5), 1), (corpus.part(0.5, 1), 1)], exhausted="stop")
    with TokenLoader(mixture, sequence_length=8, batch_size=4, order="sequential") as loader:
        x, _ = next(loader)
    assert sorted(x[:, 0].tolist()) == [0, 8, 500, 508]


def test_a_part_is_closed_by_itself(corpus):
    train, validation = corpus.part(0, 0.9), corpus.part(0.9, 1)
    with train:
        pass
    assert (train.closed, validation.closed, corpus.closed) == (True, False, False)
    with pytest.raises(ValueError, match="closed"):
        train[0]
    with pytest.raises(ValueError, match="closed"):
        train.part(0, 1)
    corpus.close()
    assert validation[0] == 900
    validation.check()


def test_a_part_outlives_the_corpus_it_was_made_from(tmp_path):
    part = open_tokens(write_tokens(tmp_path / "t.bin", TOKENS)).part(10, 20)
    with TokenLoader(part, sequence_length=4, batch_size=1, order="sequential") as loader:
        del part
        assert next(loader).x.tolist() == [[10, 11, 12, 13]]


def test_parts_that_are_closed_while_others_read_disturb_none(corpus):
    wrong = []

    def read(number):
        for round_ in range(200):
            with corpus.part(number, 1000 - number) as part:
                if part[round_] != number + round_:
                    wrong.append((number, round_))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert corpus[999] == 999


def test_documents_are_cut_at_the_ends(tmp_path):
    tokens = open_tokens(write_megatron(tmp_path / "t", TOKENS[:20], [6, 8, 6]))
    part = tokens.part(8, 16)
    assert [document.tolist() for document in part.documents] == [list(range(8, 14)), [14, 15]]
    assert part.documents.starts.tolist() == [0, 6, 8]
    assert [len(document) for document in tokens.part(6, 20).documents] == [8, 6]
    assert len(tokens.part(20, 20).documents) == 0
    with TokenLoader(
        part, sequence_length=8, batch_size=1, target="none", documents="boundaries", order="sequential"
    ) as loader:
        batch = next(loader)
    assert batch.cu_seqlens.tolist() == [0, 6, 8]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1]]


@pytest.mark.parametrize("mode", ["shared", "read"])
def test_parts_of_a_reordered_index_are_cut_in_its_order(tmp_path, mode):
    lengths = np.array([6, 8, 6])
    order = np.array([2, 0, 2, 1])
    firsts = np.cumsum(lengths) - lengths
    listed = np.concatenate([TOKENS[firsts[number] : firsts[number] + lengths[number]] for number in order])
    stem = write_megatron(tmp_path / "t", TOKENS[:20], lengths[order], pointers=firsts[order] * 2)
    tokens = open_tokens(stem, mmap_mode=mode)
    for start in range(len(listed) + 1):
        for stop in range(start, len(listed) + 1):
            part = tokens.part(start, stop)
            assert part[:].tolist() == listed[start:stop].tolist()
            again = part.part(len(part) // 3, len(part))
            assert again[:].tolist() == listed[start + len(part) // 3 : stop].tolist()
    part = tokens.part(8, 16)
    assert [document.tolist() for document in part.documents] == [
        listed[8:12].tolist(),
        listed[12:16].tolist(),
    ]
    assert pickle.loads(pickle.dumps(part))[:].tolist() == listed[8:16].tolist()
    with TokenLoader(part, sequence_length=3, batch_size=2, order="sequential", target="none") as loader:
        assert next(loader).ravel().tolist() == listed[8:14].tolist()
    with (
        TokenLoader(part, sequence_length=7, batch_size=1, vocabulary=16) as loader,
        pytest.raises(FormatError, match=r"token 6 of the corpus \(number 16 of this file\) is 16"),
    ):
        next(loader)
