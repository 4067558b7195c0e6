"""`TokenLoader` in trouble: interrupts, errors in threads, forks, replaced files, invalid arguments."""

import itertools
import os
import pickle
import threading

import numpy as np
import pytest

from pagestream import MappedFile, Mixture, TokenLoader, open_tokens
from pagestream.errors import FileChangedError, StateMismatchError
from pagestream.torch import TokenDataset

from support import real
from support.process import PROGRAMS, output_of

LENGTH = 16


def write(path, windows):
    """Writes tokens that are their own positions."""
    np.arange(windows * LENGTH + 1, dtype="u4").tofile(path)
    return open_tokens(path, dtype="uint32")


def test_threads_that_share_a_loader_over_errors_get_each_batch_once(tmp_path):
    path = tmp_path / "tokens.bin"
    corpus = write(path, 2000)
    times = os.stat(path).st_mtime_ns
    found, errors = [], []

    def consume(loader):
        for turn in itertools.count():
            # The next call fails, in this thread or in another one.
            if turn % 10 == 9:
                os.utime(path, ns=(times, times + 1000))
            try:
                x, _ = next(loader)
            except FileChangedError as error:
                errors.append(error)
                os.utime(path, ns=(times, times))
            except StopIteration:
                return
            else:
                found.extend(x[:, 0].tolist())

    with TokenLoader(corpus, sequence_length=LENGTH, batch_size=2, epochs=2, seed=4) as loader:
        threads = [threading.Thread(target=consume, args=(loader,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == sorted(2 * [window * LENGTH for window in range(2000)])
    assert errors


def test_a_state_is_loaded_while_another_thread_waits(tmp_path):
    corpus = write(tmp_path / "tokens.bin", 1000)
    options = {"sequence_length": LENGTH, "batch_size": 1, "order": "sequential", "epochs": None}
    with TokenLoader(corpus, **options) as loader:
        state = loader.state_dict()
        seen, stop = [], threading.Event()

        def consume():
            while not stop.is_set():
                seen.append(int(next(loader).x[0, 0]) // LENGTH)

        thread = threading.Thread(target=consume)
        thread.start()
        for _ in range(20):
            loader.load_state_dict(state)
        stop.set()
        thread.join()
    # The loader starts again at the beginning, and skips no window.
    assert all(after in {before + 1, 0} for before, after in itertools.pairwise(seen))


@pytest.mark.parametrize("mode", ["shared", "read"])
@pytest.mark.parametrize("trouble", ["unlink", "replace"])
def test_a_file_missing_for_the_next_epoch_is_an_error(tmp_path, mode, trouble):
    path = tmp_path / "tokens.bin"
    write(path, 2000).close()
    corpus = open_tokens(path, dtype="uint32", mmap_mode=mode)
    with TokenLoader(
        corpus, sequence_length=LENGTH, batch_size=7, order="sequential", epochs=3, lookahead=1
    ) as loader:
        next(loader)
        if trouble == "unlink":
            path.unlink()
        else:
            other = tmp_path / "other"
            np.zeros(2000 * LENGTH + 1, "u4").tofile(other)
            other.rename(path)
        told = "no longer leads|deleted" if trouble == "unlink" else "its path now names another file"
        with pytest.raises(FileChangedError, match=rf"({told}).*tokens\.bin"):  # noqa: PT012 - at the epoch's end
            for x, _ in loader:
                # The loader reads this epoch to its end, from the file that it opened.
                assert x[0, 0] == (loader.state_dict()["samples_consumed"] - 7) * LENGTH
        consumed = loader.state_dict()["samples_consumed"]
        assert 2000 - 7 < consumed < 2000 + 7
        with pytest.raises(FileChangedError):
            next(loader)


def test_a_source_of_a_mixture_that_repeats_is_looked_at_when_its_own_epoch_begins(tmp_path):
    small, large = write(tmp_path / "small.bin", 40), write(tmp_path / "large.bin", 4000)
    mixture = Mixture([(small, 1), (large, 1)])
    options = {
        "sequence_length": LENGTH,
        "batch_size": 2,
        "order": "sequential",
        "lookahead": 1,
        "epochs": None,
    }
    with TokenLoader(mixture, **options) as loader:
        next(loader)
        (tmp_path / "small.bin").unlink()
        seen = 1
        with pytest.raises(FileChangedError, match=r"small\.bin"):  # noqa: PT012 - at its epoch's end
            for _ in loader:
                seen += 1
                assert seen <= 40
        assert seen == 40
        state = loader.state_dict()
        assert state["samples_consumed"] == 80
    # A resumed loader first checks all of its files, wherever it stands in their epochs.
    with TokenLoader(mixture, **options) as loader:
        loader.load_state_dict(state | {"samples_consumed": 2})
        with pytest.raises(FileChangedError, match=r"small\.bin"):
            next(loader)


@pytest.mark.parametrize("dtype", ["raw", "int64"])
@pytest.mark.parametrize("rows", [1, 8])
def test_no_batch_of_a_rewritten_file_is_handed_out_despite_cached_attributes(tmp_path, dtype, rows):
    """The mount keeps attributes valid for an hour, and the new content has the same length."""
    source = tmp_path / "source"
    source.mkdir()
    tokens = np.arange(1, 1 + 4000 * LENGTH, dtype="u2")
    tokens[tokens == 0] = 1
    for name in ("tokens.bin", "others.bin"):
        tokens.tofile(source / name)
        # Later writes get a different time, however coarse the clock is.
        os.utime(source / name, ns=(1, 1))
    timeouts = [f"{name}_timeout=3600" for name in ("attr", "entry", "ac_attr")]
    with real.bindfs(source, tmp_path / "mount", "direct_io", *timeouts) as mount:
        options = {"order": "sequential", "epochs": 1, "dtype": dtype, "mmap_mode": "read", "lookahead": 1}
        loader = TokenLoader(mount / "tokens.bin", sequence_length=LENGTH, batch_size=rows, **options)
        with loader:
            next(loader)
            with open(source / "tokens.bin", "r+b") as file:
                file.write(bytes(tokens.nbytes))
            with pytest.raises(FileChangedError, match="written to"):  # noqa: PT012 - after the batches that were ready
                for x, _ in loader:
                    assert x.all()
        # The batches of the dataset are covered too.
        dataset = TokenDataset(open_tokens(mount / "others.bin", mmap_mode="read"), LENGTH)
        assert dataset[0][0].all()
        with open(source / "others.bin", "r+b") as file:
            file.write(bytes(tokens.nbytes))
        with pytest.raises(FileChangedError, match="written to"):
            dataset[5]


SMALL_FILES = PROGRAMS / "loader_trouble/small_files.py"


def test_each_file_of_an_unmapped_batch_is_checked_once(tmp_path):
    # This counts calls, not requests to a mount, because the kernel answers some calls itself.
    # AT_STATX_FORCE_SYNC queries the server. The number of other calls depends on the threads.
    log, folder = tmp_path / "log", tmp_path / "tokens"
    folder.mkdir()
    traced = [real.need_tool("strace"), "-f", "-qq", "-o", str(log), "-e", "trace=statx"]
    for shard in range(4):
        np.full(100 * LENGTH, shard, "u2").tofile(folder / f"{shard}.bin")
        traced += ["-P", str(folder / f"{shard}.bin")]
    calls = {}
    for batch_size in (10, 100):
        assert output_of(SMALL_FILES, folder, LENGTH, batch_size, wrapper=tuple(traced)) == "400"
        calls[batch_size] = log.read_text().count("AT_STATX_FORCE_SYNC")
    # Each batch comes from one file.
    assert calls == {10: 40, 100: 4}


def test_a_given_lookahead_is_how_many_buffers_are_filled_where_nothing_is_mapped(tmp_path):
    write(tmp_path / "tokens.bin", 1000).close()
    corpus = open_tokens(tmp_path / "tokens.bin", dtype="uint32", mmap_mode="read")
    options = {"sequence_length": LENGTH, "batch_size": 4}
    for lookahead in (1, 3, 40):
        with TokenLoader(corpus, lookahead=lookahead, **options) as loader:
            next(loader)
            assert loader.metrics().ring_batches == lookahead
    batch_bytes = 4 * LENGTH * 8 * 2
    with TokenLoader(corpus, lookahead=40, memory_bytes=20 * batch_bytes, **options) as loader:
        next(loader)
        assert loader.metrics().ring_batches == 10
    mapped = write(tmp_path / "tokens.bin", 1000)
    with TokenLoader(mapped, lookahead=40, **options) as loader:
        next(loader)
        assert (loader.metrics().lookahead_batches, loader.metrics().ring_batches) == (40, 4)


LARGE_BATCH = PROGRAMS / "loader_trouble/large_batch.py"


@pytest.mark.parametrize("mode", ["shared", "read"])
@pytest.mark.parametrize("mib", [300, 700, 1200])
def test_a_batch_that_memory_has_no_room_for_is_an_error(tmp_path, mode, mib):
    np.zeros(1000, "u2").tofile(tmp_path / "tokens.bin")
    found = output_of(LARGE_BATCH, tmp_path / "tokens.bin", mode, mib)
    assert found.startswith(("MemoryError", "OSError", "ValueError", "(16777216, 1)"))


FORKS = PROGRAMS / "loader_trouble/forks.py"


def test_forks_of_a_process_that_opens_and_closes_files(tmp_path):
    for shard in range(200):
        np.full(100, shard, "u2").tofile(tmp_path / f"{shard:03}.bin")

    assert output_of(FORKS, tmp_path) == "all came back"


def test_read_ahead_has_a_limit(tmp_path):
    corpus = write(tmp_path / "tokens.bin", 100)
    with TokenLoader(corpus, sequence_length=LENGTH, batch_size=4, epochs=None, lookahead=10**9) as loader:
        for _ in range(200):
            next(loader)
        assert loader.metrics().lookahead_batches <= 4096
    small = 1 << 20
    with TokenLoader(
        corpus, sequence_length=LENGTH, batch_size=64, lookahead=10**9, memory_bytes=small
    ) as loader:
        next(loader)
        assert loader.metrics().lookahead_batches * 64 * LENGTH * 4 <= small


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mmap_mode": "read"}, ValueError, "mmap_mode='read' has no effect without a path"),
        ({"max_documents": 3}, ValueError, "max_documents=3 has no effect without documents="),
        ({"mixing_radius": 99}, ValueError, "mixing_radius=99 has no effect without order="),
        ({"drop_last": "no"}, TypeError, "drop_last must be True or False, not 'no'"),
        ({"sequence_length": True}, TypeError, "sequence_length must be an integer, not True"),
        ({"batch_size": "8"}, TypeError, "batch_size must be an integer, not '8'"),
        ({"lookahead": "all"}, TypeError, "lookahead must be an integer, not 'all'"),
        ({"threads": "2"}, TypeError, "threads must be an integer, not '2'"),
        ({"threads": 1 << 70}, ValueError, "threads must be below 2"),
        (
            {"batch_size": 1 << 31, "epochs": None},
            ValueError,
            "batch_size is 2147483648; it must be at most 16777216",
        ),
        ({"threads": True}, TypeError, "threads must be an integer, not True"),
        ({"memory_bytes": True}, TypeError, "memory_bytes must be an integer, not True"),
        ({"order": None}, TypeError, 'order must be "shuffled", .* not None'),
        ({"order": 3}, TypeError, "order must be .* not 3"),
        ({"target": None}, TypeError, 'target must be "shift", .* not None'),
        ({"drop_behind": True}, TypeError, 'drop_behind must be "resident" or "cache", not True'),
        ({"documents": None}, TypeError, "documents must be .* not None"),
        ({"dtype": None}, TypeError, "dtype must be .* not None"),
        ({"dtype": np.dtype("float32")}, ValueError, "dtype must be .* not 'float32'"),
        (
            {"dtype": "uint32"},
            ValueError,
            r'of the files pass open_tokens\(path, dtype="uint32"\) as the tokens',
        ),
        ({"dtype": np.dtype(">i8")}, TypeError, "dtype must be .* not dtype"),
    ],
)
def test_arguments_without_effect_or_sense_are_refused(tmp_path, options, error, message):
    corpus = write(tmp_path / "tokens.bin", 100)
    with pytest.raises(error, match=message):
        TokenLoader(corpus, **{"sequence_length": LENGTH, "batch_size": 1, **options})


@pytest.mark.parametrize("dtype", [np.dtype("int32"), np.int32, "int32", "i4", "torch.int32"], ids=repr)
def test_a_type_may_be_numpys_own(tmp_path, dtype):
    corpus = write(tmp_path / "tokens.bin", 100)
    with TokenLoader(corpus, sequence_length=LENGTH, batch_size=1, dtype=dtype) as loader:
        assert next(loader).x.dtype == np.int32
    assert TokenDataset(corpus, LENGTH, dtype=dtype)[0][0].numpy().dtype == np.int32


def test_drop_behind_without_effect_is_refused(tmp_path):
    path = tmp_path / "tokens.bin"
    np.zeros(1000, "u2").tofile(path)
    options = {"sequence_length": LENGTH, "batch_size": 1}
    with pytest.raises(ValueError, match='drop_behind="resident" has no effect with mmap_mode="read"'):
        TokenLoader(path, mmap_mode="read", drop_behind="resident", **options)
    for mode, what in (("read", "cache"), ("shared", "resident"), ("private", "cache")):
        with TokenLoader(path, mmap_mode=mode, drop_behind=what, **options) as loader:
            next(loader)


@pytest.mark.parametrize(("mode", "error", "told"), [("mapped", ValueError, "'mapped'"), (3, TypeError, "3")])
def test_an_unknown_mode_is_named_as_given(tmp_path, mode, error, told):
    write(tmp_path / "tokens.bin", 10)
    words = 'must be "auto", "shared", "private" or "read", not'
    with pytest.raises(error, match=f"^mmap_mode {words} {told}"):
        open_tokens(tmp_path / "tokens.bin", mmap_mode=mode)
    with pytest.raises(error, match=f"^mode {words} {told}"):
        MappedFile(tmp_path / "tokens.bin", mode=mode)


def test_too_many_threads_of_the_environment_are_told_by_its_name(tmp_path, monkeypatch):
    corpus = write(tmp_path / "tokens.bin", 100)
    monkeypatch.setenv("PAGESTREAM_THREADS", "5000")
    with pytest.raises(ValueError, match="PAGESTREAM_THREADS is '5000'; it must be at most 1024"):
        TokenLoader(corpus, sequence_length=LENGTH, batch_size=1)
    with TokenLoader(corpus, sequence_length=LENGTH, batch_size=1, threads=2) as loader:
        next(loader)


def test_half_of_a_place_among_ranks_is_refused(tmp_path, monkeypatch):
    corpus = write(tmp_path / "tokens.bin", 100)
    for set_to, message in (
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is not set"),
        ({"RANK": "1"}, "WORLD_SIZE is not set, but RANK is 1"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is 2"),
    ):
        with monkeypatch.context() as patch:
            for name, value in set_to.items():
                patch.setenv(name, value)
            with pytest.raises(ValueError, match=message):
                TokenLoader(corpus, sequence_length=LENGTH, batch_size=1)


@pytest.mark.parametrize("state", [None, [1], {"version": 1}])
def test_an_invalid_state_is_refused_and_changes_nothing(tmp_path, state):
    corpus = write(tmp_path / "tokens.bin", 100)
    with TokenLoader(corpus, sequence_length=LENGTH, batch_size=1, order="sequential") as loader:
        next(loader)
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(state)
        with pytest.raises(StateMismatchError, match="below 2"):
            loader.load_state_dict(loader.state_dict() | {"samples_consumed": 1 << 64})
        assert next(loader).x[0, 0] == LENGTH


def test_a_loader_is_neither_copied_nor_pickled(tmp_path):
    corpus = write(tmp_path / "tokens.bin", 100)
    with TokenLoader(corpus, sequence_length=LENGTH, batch_size=1) as loader:
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            pickle.dumps(loader)
        assert loader.metrics().threads > 0
    assert loader.metrics().threads == 0


def test_a_file_rewritten_just_before_it_is_opened_is_read_anew(tmp_path):
    """The kernel caches the previous attributes for an hour."""
    source = tmp_path / "source"
    source.mkdir()
    np.zeros(400 * LENGTH, "u2").tofile(source / "tokens.bin")
    os.utime(source / "tokens.bin", ns=(1, 1))
    timeouts = [f"{name}_timeout=3600" for name in ("attr", "entry", "ac_attr")]
    with real.bindfs(source, tmp_path / "mount", "direct_io", *timeouts) as mount:
        before = os.stat(mount / "tokens.bin").st_mtime_ns
        with open(source / "tokens.bin", "r+b") as file:
            file.write(np.ones(400 * LENGTH, "u2").tobytes())
        assert os.stat(mount / "tokens.bin").st_mtime_ns == before, "the mount should not know yet"
        options = {"order": "sequential", "epochs": 1, "mmap_mode": "read"}
        with TokenLoader(mount / "tokens.bin", sequence_length=LENGTH, batch_size=8, **options) as loader:
            assert sum(len(x) for x, _ in loader if x.all()) == 392
