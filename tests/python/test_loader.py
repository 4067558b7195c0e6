"""`TokenLoader`: batches, their order, ranks, and closing."""

import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pagestream
from pagestream import Mixture, TokenLoader, open_tokens, write_tokens
from pagestream.errors import FileChangedError, MappedReadError, StateMismatchError

from support.process import PROGRAMS, run_python, thread_names, until

TOKENS = np.arange(4096, dtype="u2")


def loader_of(path, **options):
    return TokenLoader(path, **{"sequence_length": 16, "batch_size": 4, **options})


def firsts(batches):
    """Returns where the windows begin: in these files, each token is its own position."""
    return [int(row[0]) for x, _ in batches for row in x]


@pytest.mark.parametrize("mode", ["shared", "private", "read"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "raw"])
def test_an_epoch_has_each_window_once(token_file, mode, dtype):
    with loader_of(token_file, mmap_mode=mode, dtype=dtype, epochs=1, drop_last=False) as loader:
        batches = list(loader)
    expected = {"raw": "uint16"}.get(dtype, dtype)
    starts = []
    for x, y in batches:
        assert x.dtype == y.dtype == expected
        assert x.flags.c_contiguous
        assert y.flags.c_contiguous
        for row, targets in zip(x, y, strict=True):
            start = int(row[0])
            assert np.array_equal(row, TOKENS[start : start + 16])
            assert np.array_equal(targets, TOKENS[start + 1 : start + 17])
            starts.append(start)
    assert sorted(starts) == list(range(0, 4080, 16))
    assert starts != sorted(starts)


def test_sequential_batches_are_the_file(token_file):
    with loader_of(token_file, order="sequential", epochs=1, target="none") as loader:
        whole = np.concatenate([x.reshape(-1) for x in loader])
    assert np.array_equal(whole, TOKENS)


def test_block_windows_share_no_token(token_file):
    with loader_of(token_file, order="sequential", epochs=1, target="block") as loader:
        x, y = next(loader)
    assert x[:, 0].tolist() == [0, 17, 34, 51]
    assert y[:, -1].tolist() == [16, 33, 50, 67]


def test_random_starts_anywhere_and_blocked_is_a_permutation(token_file):
    with loader_of(token_file, order="random", epochs=4) as loader:
        starts = firsts(loader)
    assert max(starts) <= 4079
    assert any(start % 16 for start in starts)
    with loader_of(token_file, order="blocked", mixing_radius=64, epochs=1, drop_last=False) as loader:
        starts = firsts(loader)
    assert sorted(starts) == list(range(0, 4080, 16))


def test_epochs_follow_each_other_in_one_stream(token_file):
    with loader_of(token_file, batch_size=100, epochs=2, drop_last=False) as loader:
        sizes, starts = [], []
        for x, _ in loader:
            sizes.append(len(x))
            starts += [int(row[0]) for row in x]
        assert next(loader, "over") == "over"
    assert sizes == [100] * 5 + [10]
    assert sorted(starts[:255]) == sorted(starts[255:]) == list(range(0, 4080, 16))
    assert starts[:255] != starts[255:]


def test_length_is_batches_of_an_epoch(token_file):
    for drop_last, expected in ((True, 63), (False, 64)):
        with loader_of(token_file, drop_last=drop_last, epochs=1) as loader:
            assert len(loader) == expected
            assert sum(1 for _ in loader) == expected


# --- ranks and state ------------------------------------------------------------------------------


def test_ranks_share_out_the_same_global_batches(token_file):
    with loader_of(token_file, batch_size=6) as whole:
        expected = [next(whole).x.copy() for _ in range(5)]
    ranks = [loader_of(token_file, batch_size=2, rank=rank, world_size=3) for rank in range(3)]
    for batch in expected:
        assert np.array_equal(np.concatenate([next(rank).x for rank in ranks]), batch)
    assert len({json.dumps(rank.state_dict()) for rank in ranks}) == 1
    for rank in ranks:
        rank.close()


def test_a_short_last_batch_is_dealt_out(token_file):
    sizes = []
    for rank in range(4):
        with loader_of(token_file, batch_size=21, rank=rank, world_size=4, epochs=1, drop_last=False) as part:
            sizes.append([len(x) for x, _ in part])
    assert [sum(column) for column in zip(*sizes, strict=True)] == [84, 84, 84, 3]
    assert [column[-1] for column in sizes] == [1, 1, 1, 0]


@settings(max_examples=25)
@given(plan=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 6)), max_size=6))
def test_each_window_comes_once_whatever_the_ranks(tmp_path_factory, plan):
    path = tmp_path_factory.mktemp("ranks") / "tokens.bin"
    TOKENS[:801].tofile(path)
    corpus = open_tokens(path)
    state, seen = None, []
    for world, batch_size, steps in [*plan, (1, 7, 1000)]:
        ranks = [
            TokenLoader(
                corpus,
                sequence_length=8,
                batch_size=batch_size,
                rank=rank,
                world_size=world,
                epochs=1,
                drop_last=False,
                threads=1,
            )
            for rank in range(world)
        ]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        for _ in range(steps):
            batches = [next(loader, None) for loader in ranks]
            if batches[0] is None:
                assert batches == [None] * world
                break
            seen += firsts(batches)
        state = json.loads(json.dumps(ranks[0].state_dict()))
        for loader in ranks:
            loader.close()
        if state["epoch"] == 1:
            break
    assert sorted(seen) == list(range(0, 800, 8))


def test_a_state_of_something_else_is_refused(token_file, tmp_path):
    with loader_of(token_file) as loader:
        next(loader)
        state = loader.state_dict()
    other = tmp_path / "other.bin"
    TOKENS[::-1].tofile(other)
    for changes, word in [
        ({"seed": 1}, "seed"),
        ({"order": "sequential"}, "order"),
        ({"sequence_length": 8}, "sequence_length"),
        ({"stride": 1}, "stride"),
        ({"target": "block", "stride": 16}, "target"),
    ]:
        with loader_of(token_file, **changes) as loader, pytest.raises(StateMismatchError, match=word):
            loader.load_state_dict(state)
    with loader_of(other) as loader:
        with pytest.raises(StateMismatchError, match=state["fingerprint"]):
            loader.load_state_dict(state)
        loader.load_state_dict(state, strict=False)
        assert loader.state_dict()["samples_consumed"] == 4
        with pytest.raises(StateMismatchError, match="the state has version 99"):
            loader.load_state_dict({**state, "version": 99})
        with pytest.raises(StateMismatchError, match="order_version is 0"):
            loader.load_state_dict({**loader.state_dict(), "order_version": 0})
        for wrong in (-1, 1.5, None, True):
            with pytest.raises(StateMismatchError, match="samples_consumed"):
                loader.load_state_dict({**loader.state_dict(), "samples_consumed": wrong})


def test_rank_comes_from_the_environment(token_file, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with loader_of(token_file) as loader:
        assert (loader.rank, loader.world_size) == (1, 2)
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(ValueError, match="RANK is 'one'"):
        loader_of(token_file)


# --- mixtures and documents -----------------------------------------------------------------------


def test_a_mixture_has_its_shares_at_every_point(tmp_path):
    for name, first in (("a", 0), ("b", 20000)):
        np.arange(first, first + 9000, dtype="u2").tofile(tmp_path / name)
    mixture = Mixture([(open_tokens(tmp_path / "a"), 0.7), (open_tokens(tmp_path / "b"), 0.3)])
    with loader_of(mixture, batch_size=10, epochs=None) as loader:
        for number in range(1, 40):
            x, _ = next(loader)
            from_b = int((x[:, 0] >= 20000).sum())
            assert from_b == 3, number
        with pytest.raises(TypeError, match="no length"):
            len(loader)
        assert loader.state_dict()["epoch"] is None
    with pytest.raises(ValueError, match="no epochs"):
        loader_of(mixture, epochs=1)
    dropped = Mixture([(source, 1) for source in mixture.sources], exhausted="drop")
    with loader_of(dropped, epochs=1, drop_last=False) as loader:
        starts = firsts(loader)
    assert len(starts) == len(set(starts)) == 2 * 562


def test_documents_are_told_apart_as_a_naive_loop_does(tmp_path):
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 40, 200)
    documents = [np.arange(length, dtype="u2") for length in lengths]
    write_tokens(tmp_path / "corpus", documents, dtype="uint16", format="megatron")
    tokens = open_tokens(tmp_path / "corpus.idx")
    starts = set(np.cumsum(lengths).tolist())
    with loader_of(
        tokens, sequence_length=50, order="sequential", documents="boundaries", epochs=1, drop_last=False
    ) as loader:
        first = 0
        for batch in loader:
            bounds, positions = [], []
            for row in range(len(batch.x)):
                for column in range(50):
                    if column == 0 or first + column in starts:
                        bounds.append(row * 50 + column)
                    positions.append(row * 50 + column - bounds[-1])
                first += 50
            assert batch.cu_seqlens.tolist() == [*bounds, batch.x.size]
            assert batch.cu_seqlens.dtype == np.int32
            assert batch.position_ids.reshape(-1).tolist() == positions
            assert batch.max_seqlen == max(np.diff([*bounds, batch.x.size]))
    with loader_of(tokens, sequence_length=50, documents="boundaries", max_documents=200) as loader:
        batch = next(loader)
        assert len(batch.cu_seqlens) == 201
        assert batch.cu_seqlens[-1] == 200
    with (
        loader_of(tokens, documents="boundaries", max_documents=1) as loader,
        pytest.raises(ValueError, match="max_documents is 1"),
    ):
        next(loader)


def test_boundaries_need_files_that_record_documents(token_file):
    with pytest.raises(ValueError, match="needs files that record documents"):
        loader_of(token_file, documents="boundaries")


# --- buffers --------------------------------------------------------------------------------------


def test_a_batch_never_changes_under_its_user(token_file):
    with loader_of(token_file, order="sequential", epochs=None) as loader:
        kept = [next(loader) for _ in range(60)]
        views = [memoryview(x) for x, _ in kept]
        for number, (x, y) in enumerate(kept):
            assert x[0, 0] == number * 64
            assert y[-1, -1] == number * 64 + 64
        del kept, x, y
        for _ in range(100):
            next(loader)
        assert [view[0, 0] for view in views] == [number * 64 for number in range(60)]
    assert views[3][0, 0] == 192


def test_buffers_go_back_with_the_last_reference(token_file):
    with loader_of(token_file, epochs=None) as loader:
        for _ in range(300):
            x, y = next(loader)
        made = loader.metrics().buffers_allocated
        assert made < 80
        watched = weakref.ref(x)
        part = y[1:, ::2]
        expected = part.copy()
        del x, y
        gc.collect()
        assert watched() is None
        for _ in range(100):
            next(loader)
        assert np.array_equal(part, expected)


def test_batches_may_be_written_to(token_file):
    with loader_of(token_file) as loader:
        x, y = next(loader)
        before = y.copy()
        x[:] = -1
        assert np.array_equal(y, before)


# --- trouble --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_length": 0}, "sequence_length must be at least 1"),
        ({"sequence_length": 4096}, "a window takes 4097 tokens .*tokens.bin> has 4096"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"stride": 0}, "stride must be at least 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"order": "sorted"}, "sorted"),
        ({"target": "next"}, "next"),
        ({"dtype": "float32"}, "float32"),
        ({"documents": "yes"}, "documents must be"),
        ({"lookahead": 0}, "lookahead must be at least 1"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"threads": 2000}, "threads must be 1 to 1024"),
        ({"memory_bytes": 0}, "memory_bytes must be at least 1"),
        ({"rank": 1}, "go together"),
        ({"rank": 2, "world_size": 2}, "rank is 2, world_size 2 .* rank must be less"),
        ({"drop_behind": "all"}, "drop_behind"),
        ({"batch_size": 1 << 20, "rank": 0, "world_size": 1 << 20, "epochs": None}, "2\\^32"),
    ],
)
def test_invalid_arguments_are_refused(token_file, options, message):
    with pytest.raises(ValueError, match=message):
        loader_of(token_file, **options)


def test_arguments_that_are_not_integers(token_file):
    for name in ("sequence_length", "batch_size", "seed", "epochs", "threads"):
        with pytest.raises(TypeError):
            loader_of(token_file, **{name: 1.5})


@pytest.mark.parametrize("mode", ["shared", "private", "read"])
def test_a_file_that_is_cut_raises_and_the_rest_of_the_process_lives(tmp_path, mode):
    path = tmp_path / "tokens.bin"
    np.zeros(1 << 22, "u2").tofile(path)
    with TokenLoader(path, sequence_length=2048, batch_size=8, mmap_mode=mode, lookahead=1) as loader:
        next(loader)
        os.truncate(path, 4096)
        with pytest.raises((MappedReadError, FileChangedError)) as caught:
            sum(1 for _ in loader)
        assert caught.value.filename == str(path)
        assert "truncated" in str(caught.value)


def test_a_file_that_is_rewritten_raises_and_the_position_stays(token_file):
    with loader_of(token_file, lookahead=1) as loader:
        next(loader)
        before = loader.state_dict()["samples_consumed"]
        os.utime(token_file, ns=(1, 1))
        seen = []
        with pytest.raises(FileChangedError):
            seen.extend(len(x) for x, _ in loader)
        assert loader.state_dict()["samples_consumed"] == before + sum(seen)


def test_closing_ends_the_threads_and_leaves_batches_and_corpus(token_file):
    def native_threads():
        return [name for name in thread_names() if name.startswith("pagestream")]

    gc.collect()  # tracebacks may keep loaders of other tests alive
    corpus = open_tokens(token_file)
    loader = loader_of(corpus)
    x, _ = next(loader)
    copy = x.copy()
    assert native_threads()
    loader.close()
    loader.close()
    # The kernel lists a thread for a moment after its last instruction.
    assert until(lambda: native_threads() == [])
    assert np.array_equal(x, copy)
    assert corpus[5] == 5
    with pytest.raises(ValueError, match="closed"):
        next(loader)


def test_dropping_a_loader_in_the_middle_leaks_no_memory_map(token_file):
    def maps():
        with open("/proc/self/maps", encoding="utf-8") as file:
            return sum(1 for _ in file)

    for _ in range(3):
        next(loader_of(token_file))
    gc.collect()
    before = maps()
    for _ in range(50):
        next(loader_of(token_file))
    gc.collect()
    assert maps() < before + 20


def test_a_loader_goes_on_in_a_fork_of_its_process(token_file):
    with loader_of(token_file) as loader:
        next(loader)
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=lambda: queue.put(firsts([next(loader) for _ in range(3)])))
        child.start()
        found = queue.get()
        child.join()
        assert child.exitcode == 0
        assert found == firsts([next(loader) for _ in range(3)])


def test_ctrl_c_interrupts_and_the_loader_continues(token_file):
    code = PROGRAMS / "loader/ctrl_c_is_heard_and_the_loader_goes_on.py"
    command = [sys.executable, str(code), str(token_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted (4, 16)\n"
        assert child.wait() == 0


def test_the_interpreter_ends_with_a_loader_running(token_file):
    done = run_python(
        PROGRAMS / "loader/the_interpreter_ends_with_a_loader_running.py",
        token_file,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_threads_may_share_a_loader(token_file):
    with loader_of(token_file, epochs=4, drop_last=False) as loader:
        seen, lock = [], threading.Lock()

        def consume():
            while (batch := next(loader, None)) is not None:
                with lock:
                    seen.extend(batch.x[:, 0].tolist())

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == sorted(list(range(0, 4080, 16)) * 4)


def test_metrics_count_the_work_done(tmp_path):
    path = tmp_path / "tokens.bin"
    np.zeros(1 << 22, "u2").tofile(path)
    with TokenLoader(path, sequence_length=1024, batch_size=8, epochs=1) as loader:
        batches = sum(1 for _ in loader)
        metrics = loader.metrics()
    assert metrics.batches == batches == 511
    assert metrics.windows == 511 * 8
    assert metrics.bytes_asked == 511 * 8 * 1025 * 2
    assert metrics.lookahead_hits + metrics.lookahead_misses == 511 * 8
    assert metrics.stall_seconds >= 0
    assert metrics.lookahead_batches >= 2


def test_metrics_are_a_record_of_numbers(token_file):
    with loader_of(token_file) as loader:
        next(loader)
        metrics = loader.metrics()
    found = metrics.as_dict()
    assert found["windows"] == metrics.windows == 4
    assert {name for name, value in found.items() if type(value) is not int} == {"stall_seconds"}
    assert type(metrics.stall_seconds) is float
    assert "windows=4, batches=1" in repr(metrics)
    with pytest.raises(AttributeError):
        metrics.windows = 5


def test_a_cold_sequential_pass_reads_each_page_about_once(tmp_path):
    path = tmp_path / "tokens.bin"
    np.random.default_rng(0).integers(0, 60000, 1 << 24, "u2").tofile(path)
    file = pagestream.MappedFile(path)
    file.evict()
    assert file.residency().fraction < 0.01
    with TokenLoader(path, sequence_length=1024, batch_size=32, order="sequential", epochs=1) as loader:
        used = sum(x.size for x, _ in loader) * 2
        metrics = loader.metrics()
    assert metrics.bytes_read <= 1.1 * used


def test_drop_behind_keeps_the_resident_set_small(tmp_path):
    path = tmp_path / "tokens.bin"
    np.zeros(1 << 25, "u2").tofile(path)

    def resident_file_kib():
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssFile"))

    before = resident_file_kib()
    with TokenLoader(
        path, sequence_length=2048, batch_size=32, order="sequential", epochs=1, drop_behind="resident"
    ) as loader:
        for _ in loader:
            pass
        assert resident_file_kib() - before < 24 << 10


def test_a_slow_consumer_finds_full_batches(token_file):
    with loader_of(token_file) as loader:
        next(loader)
        assert until(lambda: loader.metrics().bytes_asked >= 5 * 4 * 17 * 2)
        stalls = loader.metrics().stalls
        next(loader)
        assert loader.metrics().stalls == stalls


def test_corpora_pickle_and_loaders_say_what_they_are(token_file):
    corpus = pickle.loads(pickle.dumps(open_tokens(token_file)))
    with loader_of(corpus) as loader:
        assert "shuffled [4, 16]" in repr(loader)
        loader.check()
