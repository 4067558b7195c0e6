"""`Mixture`: weights, refused arguments, ranks, and states that resume with other weights."""

import json
import pickle
import tempfile
import warnings
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagestream import Mixture, TokenCorpus, TokenLoader, open_tokens
from pagestream.errors import StateMismatchError


class Corpus(TokenCorpus):
    """A corpus with a given fingerprint and dtype. It records its calls."""

    fingerprint = dtype = None

    def __init__(self, name="a", dtype="uint16"):
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(64))
            file.flush()
            corpus = open_tokens(file.name, format="raw")
        super().__init__(corpus._files, corpus._opened_with)
        self.fingerprint = name
        self.dtype = np.dtype(dtype)
        self.calls = []

    def check(self):
        self.calls.append("check")

    def close(self):
        self.calls.append("close")


def mixture(*weights, **arguments):
    return Mixture([(Corpus(), weight) for weight in weights], **arguments)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((0.7, 0.3), (7, 3)),
        ((0.1, 0.2, 0.7), (1, 2, 7)),
        ((2, 1), (2, 1)),
        ((1e-3, 0.999), (1, 999)),
        ((5,), (1,)),
        ((0.25, 0.25, 0.5), (1, 1, 2)),
        ((Fraction(1, 3), Fraction(2, 3)), (1, 2)),
        ((np.float64(0.5), np.int64(1)), (1, 2)),
    ],
)
def test_weights_that_are_exact_stay_exact(weights, expected):
    assert mixture(*weights)._whole_weights == expected


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=64))
@settings(max_examples=60)
def test_all_weights_become_whole_numbers(weights):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rounding warns, which is tested below
        mixed = mixture(*weights)
    assert sum(mixed._whole_weights) <= 1 << 32
    assert min(mixed._whole_weights) >= 1
    assert sum(mixed.weights) == pytest.approx(1)


def test_a_share_that_cannot_be_kept_gets_a_warning():
    worst = "source 2 has a weight of 1e-12 of the mixture, which becomes 2.33e-10, and 2 more are off"
    with pytest.warns(UserWarning, match=worst) as told:
        mixture(1e-11, 1, 1e-12, 1e-11)
    assert len(told) == 1
    with pytest.warns(UserWarning, match=r"source 0 has .*, which becomes 2.33e-10: shares are multiples"):
        mixture(1e-10, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixture(0.001, 0.999)
        mixture(1 / 3, 2 / 3)
        mixture(1e-6, 1)


def test_shares_of_hundreds_of_sources_are_exact_to_32_bits():
    weights = np.random.default_rng(1).lognormal(0, 2, 444).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed = mixture(*weights)
    total = sum(map(Fraction, weights))
    for used, asked in zip(mixed._whole_weights, weights, strict=True):
        share = Fraction(used, sum(mixed._whole_weights))
        assert abs(share - Fraction(asked) / total) <= Fraction(1, 1 << 32)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=10))
@settings(max_examples=60)
def test_rounded_weights_are_near_those_that_were_asked_for(weights):
    for used, asked in zip(mixture(*weights).weights, weights, strict=True):
        assert used == pytest.approx(asked / sum(weights), abs=len(weights) / (1 << 32))


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), 0.0])
def test_a_weight_that_cannot_be_used_is_refused_with_its_source(weight):
    with pytest.raises(ValueError, match="source 1"):
        mixture(1, weight)


@pytest.mark.parametrize("weight", ["much", "1/0", "0.5", b"1", None, True, [1], 1j])
def test_a_weight_that_is_not_a_number_is_refused_with_its_source(weight):
    with pytest.raises(TypeError, match="the weight of source 1 must be a number"):
        mixture(1, weight)


def test_invalid_mixtures_are_refused():
    with pytest.raises(ValueError, match="1 to 1024 sources, not 0"):
        mixture()
    with pytest.raises(ValueError, match="not 1025"):
        mixture(*[1] * 1025)
    with pytest.raises(ValueError, match="'end'"):
        mixture(1, exhausted="end")


def test_the_fingerprint_tells_corpora_shares_and_policy_apart():
    def of(names, weights, exhausted):
        pairs = [(Corpus(name), weight) for name, weight in zip(names, weights, strict=True)]
        return Mixture(pairs, exhausted=exhausted).fingerprint

    first = of("ab", (0.7, 0.3), "repeat")
    assert first == of("ab", (7, 3), "repeat")
    others = [of("ba", (7, 3), "repeat"), of("ab", (3, 7), "repeat"), of("ab", (7, 3), "stop")]
    assert len({first, *others}) == 4


def test_check_and_close_reach_every_corpus():
    corpora = [Corpus("a"), Corpus("b")]
    with Mixture([(corpus, 1) for corpus in corpora]) as mixed:
        mixed.check()
    assert [corpus.calls for corpus in corpora] == [["check", "close"]] * 2


def test_a_pickled_mixture_is_the_same(token_file):
    tokens = open_tokens(token_file)
    mixed = Mixture([(tokens, 0.7), (tokens, 0.3)], exhausted="drop")
    again = pickle.loads(pickle.dumps(mixed))
    assert (again._whole_weights, again.exhausted) == ((7, 3), "drop")
    assert [list(corpus[:9]) for corpus in again.sources] == [list(range(9))] * 2
    assert "0.7" in repr(again)
    assert "exhausted='drop'" in repr(again)


def test_a_loader_draws_in_these_shares(tmp_path):
    for number in range(2):
        np.full(100, number, "u2").tofile(tmp_path / f"{number}.bin")
    mixed = Mixture(
        [(open_tokens(tmp_path / f"{number}.bin"), weight) for number, weight in enumerate((0.7, 0.3))]
    )
    options = {"sequence_length": 1, "batch_size": 1000, "target": "none", "seed": 5, "epochs": None}
    with TokenLoader(mixed, **options) as loader:
        first = next(loader)[:, 0]
        loader.load_state_dict(loader.state_dict() | {"samples_consumed": 510})
        later = next(loader)[:, 0]
    assert Counter(first.tolist()) == Counter(later.tolist()) == {0: 700, 1: 300}


def test_a_mixture_is_made_without_a_read():
    class Unread(Corpus):
        @property
        def fingerprint(self):
            pytest.fail("fingerprints are for states")

        @fingerprint.setter
        def fingerprint(self, _):
            pass

    assert Mixture([(Unread(), 1)])._whole_weights == (1,)


def test_invalid_pairs_and_corpora_are_refused_by_their_number():
    tokens, pairs = Corpus(), "the sources of a mixture are pairs of a corpus and its weight"
    for wrong, message in (
        ([tokens, tokens], f"{pairs}.*source 0 is"),
        ([(tokens, 1), (tokens,)], f"{pairs}.*source 1 is"),
        (tokens, f"{pairs}.*source 0 is"),
        ({"web": 0.5}, pairs),
        ([(mixture(1), 1)], "source 0 of a mixture must be a corpus.*; give its sources"),
        ([(tokens, 1), (7, 1)], "source 1 of a mixture must be a corpus, as from open_tokens, or a path"),
    ):
        with pytest.raises(TypeError, match=message):
            Mixture(wrong)


def test_sources_may_be_paths(tmp_path):
    for name in ("a", "b"):
        np.arange(64, dtype="u2").tofile(tmp_path / f"{name}.bin")
    tokens = open_tokens(tmp_path / "a.bin")
    paths = [str(tmp_path / "a.bin"), tmp_path / "b.bin", [tmp_path / "a.bin", tmp_path / "b.bin"]]
    with Mixture([(tokens, 1), *((path, 2) for path in paths)]) as opened:
        assert opened.sources[0] is tokens
        assert [len(source) for source in opened.sources] == [64, 64, 64, 128]
        assert opened.weights == (1 / 7, 2 / 7, 2 / 7, 2 / 7)
    assert all(source.closed for source in opened.sources)
    with pytest.raises(FileNotFoundError) as caught:
        Mixture([(paths[0], 1), (str(tmp_path / "none.bin"), 1)])
    assert caught.value.filename == str(tmp_path / "none.bin")
    # Weights are checked first: a bad weight opens no file.
    with pytest.raises(ValueError, match="weight of source 0"):
        Mixture([("none.bin", -1)])


# --- ranks ----------------------------------------------------------------------------------------


@pytest.fixture
def numbered(tmp_path):
    """Makes corpora in which each token encodes its source and its position: 1000 * source + position."""

    def corpora(*sizes, dtype="u2"):
        paths = [tmp_path / f"{number}-{size}-{dtype}.bin" for number, size in enumerate(sizes)]
        for number, (size, path) in enumerate(zip(sizes, paths, strict=True)):
            np.arange(number * 1000, number * 1000 + size, dtype=dtype).tofile(path)
        return [open_tokens(path, dtype=dtype) for path in paths]

    return corpora


def loader_of(pairs, *, exhausted="repeat", **options):
    given = {"sequence_length": 1, "batch_size": 1, "target": "none", "seed": 3, "epochs": None}
    options = {**given, **options}
    return TokenLoader(Mixture(pairs, exhausted=exhausted), **options)


def flat(batches):
    return [token for batch in batches for token in batch]


def tokens_of(loader, batches):
    return [next(loader)[:, 0].tolist() for _ in range(batches)]


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("rows", [1, 3])
def test_each_rank_gets_its_shares_and_the_batches_are_those_of_one_rank(numbered, world_size, rows):
    corpora = numbered(900, 800)
    pairs, batches = [(corpus, 0.5) for corpus in corpora], 800
    with loader_of(pairs, batch_size=rows * world_size) as loader:
        whole = tokens_of(loader, batches)
    parts = []
    for rank in range(world_size):
        with loader_of(pairs, batch_size=rows, rank=rank, world_size=world_size) as loader:
            parts.append(tokens_of(loader, batches))
    assert whole == [flat(parts_of_batch) for parts_of_batch in zip(*parts, strict=True)]
    for part in parts:
        first = sum(token < 1000 for batch in part for token in batch)
        # This bound is five standard deviations of independent draws.
        assert abs(first / (batches * rows) - 0.5) < 2.5 / (batches * rows) ** 0.5


def test_corpora_of_different_types_make_one_batch(tmp_path):
    np.full(64, 7, "u2").tofile(tmp_path / "narrow")
    np.full(64, 1 << 20, "u4").tofile(tmp_path / "wide")
    pairs = [(open_tokens(tmp_path / "narrow"), 1), (open_tokens(tmp_path / "wide", dtype="u4"), 1)]
    for ordered in (pairs, pairs[::-1]):
        for dtype in ("int64", "int32"):
            with loader_of(ordered, batch_size=8, sequence_length=8, dtype=dtype) as loader:
                batch = next(loader)
            assert batch.dtype == dtype
            assert sorted(set(batch.reshape(-1).tolist())) == [7, 1 << 20]
            assert (batch == batch[:, :1]).all()
            assert (batch[:, 0] == 7).sum() == 4
        with pytest.raises(
            ValueError, match='dtype="raw" needs corpora of one type, not uint16, uint32; use'
        ):
            loader_of(ordered, dtype="raw")


# --- changed weights during a run -----------------------------------------------------------------


def test_other_weights_resume_each_source_where_it_was(numbered):
    first, second, third = numbered(600, 500, 400)
    with loader_of([(first, 0.5), (second, 0.5)], batch_size=10) as loader:
        seen = tokens_of(loader, 20)
        state = json.loads(json.dumps(loader.state_dict()))
    assert [source["windows_consumed"] for source in state["mixture"]["sources"]] == [100, 100]
    # The weights and the order of the sources differ, and one source is new.
    pairs = [(third, 0.2), (second, 0.6), (first, 0.2)]
    with loader_of(pairs, batch_size=10) as loader:
        loader.load_state_dict(state, new_mixture=True)
        later = tokens_of(loader, 60)
        state = loader.state_dict()
        rest = tokens_of(loader, 20)
    for batch in later:
        assert Counter(token // 1000 for token in batch) == {0: 2, 1: 6, 2: 2}
    used = [(source["epoch"], source["windows_consumed"]) for source in state["mixture"]["sources"]]
    assert used == [(0, 120), (0, 460), (0, 220)]
    assert state["samples_consumed"] == 800
    drawn = flat(seen + later)
    assert len(set(drawn)) == len(drawn)
    # The new mixture's state is an ordinary state: any number of ranks can load it, and its epochs end right.
    parts = []
    for rank in range(2):
        with loader_of(pairs, batch_size=5, rank=rank, world_size=2) as loader:
            loader.load_state_dict(state)
            parts.append(tokens_of(loader, 20))
    assert [flat(batch) for batch in zip(*parts, strict=True)] == rest
    drawn += flat(rest)
    assert len({token for token in drawn if 1000 <= token < 2000}) == 500


@pytest.mark.parametrize("exhausted", ["drop", "stop"])
def test_a_pass_ends_as_it_would_under_other_weights(numbered, exhausted):
    corpora = numbered(60, 40)
    options = {"batch_size": 5, "exhausted": exhausted, "epochs": 2, "drop_last": False}
    with loader_of([(corpus, 1) for corpus in corpora], **options) as loader:
        seen = tokens_of(loader, 6)
        state = loader.state_dict()
    # Within a batch, the order of rows differs from the order of draws.
    with loader_of([(corpora[0], 1), (corpora[1], 3)], **options | {"batch_size": 1}) as loader:
        loader.load_state_dict(state, new_mixture=True)
        assert loader.state_dict()["epoch"] == 0
        rest = [token for batch in loader for token in batch[:, 0].tolist()]
        assert loader.state_dict()["epoch"] == 2
    # 15 windows of the second source are used. Under "stop", its last 25 windows end the pass.
    pass_length = 100 if exhausted == "drop" else 30 + 33
    drawn = flat(seen) + rest
    first_pass = drawn[:pass_length]
    assert len(set(first_pass)) == pass_length
    assert len(set(drawn[pass_length:])) == len(drawn) - pass_length == (100 if exhausted == "drop" else 53)
    assert sum(token >= 1000 for token in first_pass) == 40


def test_a_state_of_one_corpus_goes_on_in_a_mixture(numbered):
    first, second = numbered(300, 200)
    options = {"sequence_length": 1, "batch_size": 10, "target": "none", "seed": 3, "epochs": None}
    with TokenLoader(first, **options) as loader:
        seen = flat(tokens_of(loader, 32))
        state = loader.state_dict()
        rest = flat(tokens_of(loader, 28))
    with loader_of([(second, 0.5), (first, 0.5)], batch_size=10) as loader:
        with pytest.raises(StateMismatchError, match=r"no record of a mixture.*Pass new_mixture=True"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, new_mixture=True)
        later = flat(tokens_of(loader, 56))
        mixed = loader.state_dict()
    assert len(set(seen[:300])) == 300
    assert sorted(token for token in later if token < 1000) == sorted(rest)
    with TokenLoader(first, **options) as loader:
        with pytest.raises(StateMismatchError, match="the state is of a Mixture, and this loader reads one"):
            loader.load_state_dict(mixed)
        with pytest.raises(ValueError, match="new_mixture=True needs a loader of a Mixture"):
            loader.load_state_dict(state, new_mixture=True)


def test_a_state_of_another_mixture_is_refused_by_what_differs(numbered, tmp_path):
    first, second, third = numbered(300, 200, 100)
    with loader_of([(first, 0.7), (second, 0.3)]) as loader:
        next(loader)
        state = loader.state_dict()
    cases = [
        (
            [(first, 0.5), (second, 0.5)],
            "repeat",
            "weight of source 0 is 0.7 in the state and 0.5 here; the weight",
        ),
        ([(first, 0.7), (second, 0.3)], "stop", "exhausted is 'repeat' in the state and 'stop' here"),
        ([(second, 0.3), (first, 0.7)], "repeat", "the sources are in another order"),
        (
            [(first, 0.7), (third, 0.3)],
            "repeat",
            rf"source 1 of the state \({second.fingerprint}\) is not here",
        ),
        (
            [(first, 0.7), (third, 0.3)],
            "repeat",
            rf"source 1 here \({third.fingerprint}\) is not in the state",
        ),
        ([(first, 0.7), (second, 0.3), (second, 0.1)], "repeat", "the state has 2 sources, and here are 3"),
    ]
    for pairs, exhausted, message in cases:
        with loader_of(pairs, exhausted=exhausted) as loader:
            with pytest.raises(StateMismatchError, match=f"{message}.*Pass new_mixture=True"):
                loader.load_state_dict(state)
            assert loader.state_dict()["samples_consumed"] == 0
            # With the position alone, the mixture behaves as if it had always had these weights.
            loader.load_state_dict(state, strict=False)
            assert loader.state_dict()["mixture"]["start_samples"] == 0
            loader.load_state_dict(state, new_mixture=True)
            assert loader.state_dict()["mixture"]["start_samples"] == 1
    with loader_of([(third, 1)]) as loader:
        with pytest.raises(StateMismatchError, match="no source of this mixture is in the state"):
            loader.load_state_dict(state, new_mixture=True)
        with pytest.raises(StateMismatchError, match="seed is 9"):
            loader.load_state_dict(state | {"seed": 9}, new_mixture=True)
    many = [(corpus, weight) for corpus in (first, second, third) for weight in (1, 2, 3)]
    with loader_of(many) as loader:
        state = loader.state_dict()
    with (
        loader_of([(corpus, weight**2) for corpus, weight in many]) as loader,
        pytest.raises(StateMismatchError, match=r"; and 6 more\. Pass"),
    ):
        loader.load_state_dict(state)


def test_an_invalid_record_is_refused(numbered):
    pairs = [(corpus, 1) for corpus in numbered(300, 200)]
    with loader_of(pairs) as loader:
        next(loader)
        state = loader.state_dict()
        record = state["mixture"]
        source = record["sources"][0]
        for wrong, message in [
            (None, "must be a dict with its sources"),
            ({"sources": []}, "must be a dict with its sources"),
            (record | {"sources": [3]}, "source 0 of the state is 3; it must be a dict"),
            (record | {"sources": [source | {"epoch": -1}]}, "epoch of source 0 is -1 in the state"),
            (record | {"start_samples": "0"}, "start_samples is '0' in the state"),
            (record | {"version": 1}, "its schedule has version 1; this release has 2"),
            (record | {"sources": [source, record["sources"][1] | {"number": 0}]}, "have the number 0"),
            (record | {"start_samples": 7}, "sample 1 lies before the start of the mixture, sample 7"),
            (
                record | {"sources": [source | {"start_windows_consumed": 301}, record["sources"][1]]},
                "source 0 starts at window 301 of epoch 0",
            ),
            (
                record | {"sources": [source | {"number": 1 << 40}, record["sources"][1]]},
                "record of its mixture",
            ),
        ]:
            with pytest.raises(StateMismatchError, match=message):
                loader.load_state_dict(state | {"mixture": wrong})
        loader.load_state_dict(state)
        assert loader.state_dict() == state
