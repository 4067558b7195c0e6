"""`write_tokens`: the tokens read back as written, and a file is complete or absent."""

from __future__ import annotations

import array
import errno
import fcntl
import gc
import io
import os
import resource
import stat
import struct
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagestream import open_tokens, write_tokens
from pagestream.errors import FileChangedError
from pagestream.tokens import writing as writing_module

from support.process import PROGRAMS, start_python
from support.token_files import TOKEN_TYPES, tokens_of
from support.token_formats import MEGATRON_CODES, llmc_bytes, megatron_index

TYPES = {
    "raw": TOKEN_TYPES,
    "npy": TOKEN_TYPES,
    "llmc": ["<u2", "<u4"],
    "megatron": ["u1", "i1", "<u2", "<i2", "<i4", "<i8"],
}
EVERY = [(kind, dtype) for kind, dtypes in TYPES.items() for dtype in dtypes]
every_format = pytest.mark.parametrize("kind", TYPES)


def parts_of(tokens, lengths):
    return np.split(tokens, np.cumsum(lengths)[:-1]) if lengths else []


def files(folder):
    return sorted(os.listdir(folder))


@pytest.mark.parametrize(("kind", "dtype"), EVERY)
def test_what_is_written_is_read_back(tmp_path, kind, dtype):
    expected = tokens_of(dtype, 100)
    assert write_tokens(tmp_path / "t.bin", expected, dtype=dtype, format=kind) == 100
    corpus = open_tokens(tmp_path / "t.bin", dtype=dtype, format=None if kind != "raw" else "raw")
    np.testing.assert_array_equal(corpus[:], expected, strict=True)
    assert corpus.shards[0].format == kind
    assert files(tmp_path) == (["t.bin", "t.idx"] if kind == "megatron" else ["t.bin"])


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 12), max_size=6),
    choice=st.sampled_from(EVERY),
    given_type=st.sampled_from(["own", "i8", ">i8"]),
    chunk=st.sampled_from([1, 3, 1 << 20]),
)
def test_any_arrays_in_any_chunks_make_the_same_file(tmp_path_factory, lengths, choice, given_type, chunk):
    kind, dtype = choice
    folder = tmp_path_factory.mktemp("w")
    expected = tokens_of(dtype, sum(lengths))
    if given_type != "own" and dtype == "<u8":
        given_type = "own"
    parts = [
        part.astype(dtype if given_type == "own" else given_type) for part in parts_of(expected, lengths)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing_module, "_CHUNK_TOKENS", chunk)
        assert write_tokens(folder / "t.bin", iter(parts), dtype=dtype, format=kind) == sum(lengths)
    data = (folder / "t.bin").read_bytes()
    if kind == "raw":
        assert data == expected.tobytes()
    elif kind == "npy":
        np.testing.assert_array_equal(np.load(io.BytesIO(data)), expected, strict=True)
    elif kind == "llmc":
        assert data == llmc_bytes(expected)
    else:
        assert data == expected.tobytes()
        index = megatron_index(lengths, range(len(lengths) + 1), expected.itemsize, MEGATRON_CODES[dtype])
        assert (folder / "t.idx").read_bytes() == index


def test_the_header_of_a_npy_file_is_as_long_for_any_count(tmp_path):
    for count in (0, 7, 1 << 63):
        header = io.BytesIO()
        fields = {"descr": "<u2", "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(header, fields)
        assert len(header.getvalue()) == writing_module._NPY_HEADER_BYTES
    write_tokens(tmp_path / "t.npy", np.arange(7), dtype="u2", format="npy")
    data = (tmp_path / "t.npy").read_bytes()
    assert len(data) == 128 + 2 * 7
    assert data[:128].endswith(b" \n")


@pytest.mark.parametrize("name", ["v1.5_text", "v1.5_text.bin", "v1.5_text.idx"])
def test_a_megatron_pair_is_named_by_either_file_or_their_stem(tmp_path, name):
    write_tokens(tmp_path / name, [np.arange(3), np.arange(2)], dtype="i4", format="megatron")
    assert files(tmp_path) == ["v1.5_text.bin", "v1.5_text.idx"]
    assert [len(document) for document in open_tokens(tmp_path / name).documents] == [3, 2]


@pytest.mark.parametrize(
    "kind", [list, np.array, lambda starts: np.array(starts, "u8")], ids=["list", "i8", "u8"]
)
def test_documents_are_as_starts_has_them(tmp_path, kind):
    tokens = tokens_of("<u2", 9)
    starts = [0, 0, 4, 4, 9]
    write_tokens(
        tmp_path / "t", parts_of(tokens, [7, 2]), dtype="u2", format="megatron", documents=kind(starts)
    )
    documents = open_tokens(tmp_path / "t").documents
    assert documents.starts.tolist() == starts
    write_tokens(
        tmp_path / "again",
        open_tokens(tmp_path / "t")[:],
        dtype="u2",
        format="megatron",
        documents=documents.starts,
    )
    for suffix in (".idx", ".bin"):
        assert (tmp_path / f"again{suffix}").read_bytes() == (tmp_path / f"t{suffix}").read_bytes()


def test_a_document_longer_than_an_int32_counts_is_several_sequences(tmp_path, monkeypatch):
    monkeypatch.setattr(writing_module, "_INT32_MAX", 4)
    tokens = tokens_of("<u2", 14)
    write_tokens(tmp_path / "t", parts_of(tokens, [9, 0, 5]), dtype="u2", format="megatron")
    index = (tmp_path / "t.idx").read_bytes()
    assert index == megatron_index([4, 4, 1, 0, 4, 1], [0, 3, 4, 6], 2, 8)
    assert open_tokens(tmp_path / "t").documents.starts.tolist() == [0, 9, 9, 14]


def test_an_llmc_file_that_cannot_be_counted_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(writing_module, "_INT32_MAX", 10)
    assert write_tokens(tmp_path / "t", [np.arange(5)] * 2, dtype="u2", format="llmc") == 10
    with pytest.raises(ValueError, match=r"array 2 makes 11 tokens.*at most 10"):
        write_tokens(tmp_path / "u", [np.arange(5), np.arange(5), [1]], dtype="u2", format="llmc")
    assert files(tmp_path) == ["t"]


# Refusals


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        ([0, 65536], "u2", "token 1 of array 1 is 65536.*uint16.*0 to 65535"),
        ([0, 1, -1], "u2", "token 2 of array 1 is -1"),
        (np.array([1 << 63], "u8"), "i8", "is 9223372036854775808.*int64"),
        (np.array([-1], "i1"), "u8", "is -1.*uint64"),
        (np.array([128], "u1"), "i1", "is 128.*-128 to 127"),
    ],
)
def test_a_token_that_does_not_fit_is_refused_and_not_wrapped(tmp_path, array, dtype, message):
    with pytest.raises(ValueError, match=message):
        write_tokens(tmp_path / "t", [[1, 2], array], dtype=dtype)
    assert files(tmp_path) == []


@pytest.mark.parametrize("array", [np.zeros((2, 3), int), [1.5], [True], ["a"], None], ids=str)
def test_what_is_no_array_of_integers_is_a_type_error(tmp_path, array):
    with pytest.raises(TypeError, match="array 0"):
        write_tokens(tmp_path / "t", [array], dtype="u2")
    assert files(tmp_path) == []


def test_integers_are_one_array_whatever_holds_them(tmp_path, monkeypatch):
    monkeypatch.setattr(writing_module, "_CHUNK_TOKENS", 4)
    tokens = [7, 65535, 0, 3, 9, 1]
    path, seen = tmp_path / "t", []
    options = {"dtype": "u2", "progress": lambda done, total: seen.append((done, total))}
    for same in (tokens, tuple(tokens), [np.uint32(token) for token in tokens], [*map(np.array, tokens)]):
        assert write_tokens(path, same, **options) == 6
        assert np.fromfile(path, "<u2").tolist() == tokens
    assert seen[-1] == (12, 12)
    assert write_tokens(path, (token for token in tokens), **options) == 6
    assert seen[-1] == (12, 0)
    assert np.fromfile(path, "<u2").tolist() == tokens
    assert write_tokens(path, array.array("H", tokens), dtype="u4") == 6
    assert np.fromfile(path, "<u4").tolist() == tokens
    assert write_tokens(path, range(3, 12), dtype="u1") == 9
    assert path.read_bytes() == bytes(range(3, 12))
    assert write_tokens(path, [[]], dtype="u2") == write_tokens(path, [], dtype="u2") == 0

    write_tokens(tmp_path / "m", iter(tokens), dtype="u2", format="megatron")
    assert open_tokens(tmp_path / "m").documents.starts.tolist() == [0, 6]


def test_integers_that_are_no_tokens_of_the_type_are_refused_with_their_place(tmp_path, monkeypatch):
    monkeypatch.setattr(writing_module, "_CHUNK_TOKENS", 4)
    for wrong in (65536, -1, 1 << 64, -(1 << 80)):
        with pytest.raises(ValueError, match=f"token 5 of array 0 is {wrong}, which does not fit in uint16"):
            write_tokens(tmp_path / "t", iter([0, 1, 2, 3, 4, wrong, 70000]), dtype="u2")
    # NumPy converts these two to floats.
    with pytest.raises(ValueError, match=f"token 0 of array 0 is {1 << 63}, which does not fit in int64"):
        write_tokens(tmp_path / "t", [1 << 63, -1], dtype="i8")
    for wrong in ([1, 2.5], [True, False], "12", ["12"], [1, None], [b"12"]):
        with pytest.raises(TypeError, match="tokens are integers"):
            write_tokens(tmp_path / "t", wrong, dtype="u2")
    for wrong in (b"12", bytearray(2), memoryview(b"12")):
        with pytest.raises(TypeError, match=r"does not say how many bytes.*pass np\.frombuffer"):
            write_tokens(tmp_path / "t", wrong, dtype="u2")
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "dtype", "message"),
    [
        ("raw", "f4", "float32"),
        ("npy", ">u2", "little-endian"),
        ("llmc", "i4", "uint16, uint32, not int32"),
        ("megatron", "u4", "not uint32"),
        ("parquet", "u2", '"raw", "npy", "llmc" or "megatron", not \'parquet\''),
    ],
)
def test_types_and_formats_that_cannot_be_written_are_value_errors(tmp_path, kind, dtype, message):
    with pytest.raises(ValueError, match=message):
        write_tokens(tmp_path / "t", [[1]], dtype=dtype, format=kind)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "sequence of integers"),
        ([0.0, 3.0], "sequence of integers"),
        ([1, 3], "begins at token 1; expected 0"),
        ([0, 2, 1, 3], "document 2 begins at token 1, before document 1 at 2"),
        ([0, 2], "end at token 2, but there are 3"),
        ([0, 4], "end at token 4, but there are 3"),
        (np.array([0, 1 << 63], "u8"), "9223372036854775808"),
    ],
)
def test_documents_that_do_not_match_the_tokens_are_refused(tmp_path, documents, message):
    with pytest.raises(ValueError, match=message):
        write_tokens(tmp_path / "t", np.arange(3), dtype="u2", format="megatron", documents=documents)
    assert files(tmp_path) == []


def test_formats_that_do_not_record_documents_say_so(tmp_path):
    with pytest.raises(ValueError, match="does not record documents"):
        write_tokens(tmp_path / "t", np.arange(3), dtype="u2", documents=[0, 3])


# Complete or absent


@every_format
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_an_interruption_leaves_the_old_file_and_nothing_else(tmp_path, kind, error):
    write_tokens(tmp_path / "t.bin", [[1, 2, 3]], dtype="u2", format=kind)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}

    def arrays():
        yield np.arange(2_000_000) % 100
        raise error

    with pytest.raises(error):
        write_tokens(tmp_path / "t.bin", arrays(), dtype="u2", format=kind)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


@every_format
def test_until_the_end_the_file_has_another_name(tmp_path, kind):
    def arrays():
        yield [1, 2]
        assert all(name.startswith(".t.bin.") or name.endswith(".tmp") for name in files(tmp_path))
        yield [3]

    write_tokens(tmp_path / "t.bin", arrays(), dtype="u2", format=kind)
    assert open_tokens(tmp_path / "t.bin", format=kind)[:].tolist() == [1, 2, 3]


def temporary_files(folder):
    return [name for name in files(folder) if name.endswith((".tmp", ".lock"))]


SLOW_WRITER = PROGRAMS / "write_slowly.py"


@every_format
def test_the_next_write_removes_files_of_killed_writers(tmp_path, kind):
    for _ in range(3):
        with start_python(SLOW_WRITER, tmp_path / "t.bin", kind) as killed:
            assert killed.stdout.readline() == "writing\n"
            killed.kill()
    assert temporary_files(tmp_path)
    (tmp_path / ".t.bin.notours.tmp").touch()
    write_tokens(tmp_path / "t.bin", [[1, 2]], dtype="u2", format=kind)
    assert temporary_files(tmp_path) == [".t.bin.notours.tmp"]


@every_format
def test_the_files_of_a_living_writer_stay(tmp_path, kind):
    with start_python(SLOW_WRITER, tmp_path / "t.bin", kind) as living:
        assert living.stdout.readline() == "writing\n"
        before = temporary_files(tmp_path)
        assert before
        write_tokens(tmp_path / "t.bin", [[1, 2]], dtype="u2", format=kind)
        assert temporary_files(tmp_path) == before
        # The living writer continues, and its tokens replace ours.
    assert living.returncode == 0
    assert temporary_files(tmp_path) == []
    assert open_tokens(tmp_path / "t.bin", format=kind)[:].tolist() == [7, 8, 9]


@pytest.mark.parametrize("what", ["folder", "data", "index"])
def test_a_reader_that_holds_a_lock_holds_up_no_writer(tmp_path, what):
    write_tokens(tmp_path / "t.bin", [[1]], dtype="u2", format="megatron")
    path = {"folder": tmp_path, "data": tmp_path / "t.bin", "index": tmp_path / "t.idx"}[what]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        write_tokens(tmp_path / "t.bin", [[1, 2]], dtype="u2", format="megatron")
    finally:
        os.close(descriptor)
    assert open_tokens(tmp_path / "t")[:].tolist() == [1, 2]


@every_format
def test_a_full_disk_is_an_os_error_that_names_the_file(tmp_path, kind):
    # The limit stops files at 64 KiB. Python ignores SIGXFSZ, so writes fail with EFBIG.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_tokens(tmp_path / "t.bin", np.zeros(100_000, "u2"), dtype="u2", format=kind)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, os.fspath(tmp_path / "t.bin"))
    assert files(tmp_path) == []


@every_format
def test_files_are_synced_before_they_are_renamed(tmp_path, kind, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        calls.append("folder" if folder else f"file of {os.fstat(descriptor).st_size}")
        fsync(descriptor)

    def note_replace(source, target):
        calls.append(os.path.basename(target))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_tokens(tmp_path / "t.bin", [[1, 2]], dtype="u2", format=kind)
    sizes = [f"file of {os.path.getsize(tmp_path / name)}" for name in files(tmp_path)]
    assert calls == [*sizes, *files(tmp_path), "folder"]


@every_format
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_mode_follows_the_umask(tmp_path, kind, mask):
    before = os.umask(mask)
    try:
        write_tokens(tmp_path / "t.bin", [[1]], dtype="u2", format=kind)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in files(tmp_path)}
    assert modes == {0o666 & ~mask}


def test_a_directory_and_a_missing_folder_are_os_errors_with_the_path(tmp_path):
    with pytest.raises(IsADirectoryError) as caught:
        write_tokens(tmp_path, [[1]], dtype="u2")
    assert caught.value.filename == os.fspath(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        write_tokens(tmp_path / "missing" / "t", [[1]], dtype="u2")
    # The error names the missing folder, not the temporary file.
    assert caught.value.filename == os.fspath(tmp_path / "missing")


@every_format
def test_an_old_files_permissions_are_kept(tmp_path, kind):
    write_tokens(tmp_path / "t.bin", [[1]], dtype="u2", format=kind)
    for mode in (0o600, 0o640, 0o666):
        for name in files(tmp_path):
            os.chmod(tmp_path / name, mode)
        write_tokens(tmp_path / "t.bin", [[2]], dtype="u2", format=kind)
        assert {stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in files(tmp_path)} == {mode}


@every_format
def test_an_interrupt_right_after_an_open_leaves_no_file_open(tmp_path, kind):
    """Python handles signals when a call returns. The test interrupts after each call that gives a
    descriptor."""

    def interrupted_after(number):
        calls = iter(range(100))

        def profile(_frame, event, function):
            opens = event == "c_return" and function.__name__ in ("open", "fdopen", "extend")
            if opens and next(calls) == number:
                raise KeyboardInterrupt

        sys.setprofile(profile)
        try:
            write_tokens(tmp_path / "t.bin", [[1, 2], [3]], dtype="u2", format=kind)
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False

    write_tokens(tmp_path / "t.bin", [[1, 2], [3]], dtype="u2", format=kind)
    before, names = set(os.listdir("/proc/self/fd")), files(tmp_path)
    number = 0
    while interrupted_after(number):
        gc.collect()
        # There may be fewer if objects of an earlier test were freed meanwhile.
        assert set(os.listdir("/proc/self/fd")) <= before, number
        assert files(tmp_path) == names, number
        number += 1
    assert number >= 1


def test_progress_is_told_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(writing_module, "_CHUNK_TOKENS", 4)
    seen = []
    write_tokens(
        tmp_path / "t", [np.arange(6), np.arange(3)], dtype="u2", progress=lambda *at: seen.append(at)
    )
    assert seen == [(8, 18), (12, 18), (18, 18)]
    seen.clear()
    write_tokens(tmp_path / "t", iter([np.arange(3)]), dtype="u2", progress=lambda *at: seen.append(at))
    assert seen == [(6, 0)]


def test_memory_does_not_grow_with_the_tokens(tmp_path):
    import tracemalloc

    array = np.zeros(1 << 20, "u2")

    def peak(count):
        tracemalloc.start()
        try:
            write_tokens(tmp_path / "t", (array for _ in range(count)), dtype="u4")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(24) < peak(4) + (1 << 20)


@pytest.mark.frameworks
def test_a_torch_tensor_is_one_array(tmp_path):
    import torch

    assert write_tokens(tmp_path / "t", torch.arange(5), dtype="u2") == 5
    assert open_tokens(tmp_path / "t")[:].tolist() == [0, 1, 2, 3, 4]


def test_the_header_of_llmc_says_the_count_that_was_not_known_at_the_start(tmp_path):
    write_tokens(tmp_path / "t", (np.arange(n) for n in (3, 4)), dtype="u4", format="llmc")
    words = struct.unpack("<256i", (tmp_path / "t").read_bytes()[:1024])
    assert words == (20240801, 7, 7, *[0] * 253)


def test_two_writers_of_a_pair_leave_one_pair(tmp_path):
    """Both writers write the same number of tokens in different documents: a mixed pair would look valid."""
    stem = tmp_path / "corpus"

    def write(lengths, value):
        for _ in range(60):
            write_tokens(stem, [np.full(n, value, "u2") for n in lengths], dtype="u2", format="megatron")

    threads = [
        threading.Thread(target=write, args=([3, 7], 1)),
        threading.Thread(target=write, args=([6, 4], 2)),
    ]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        try:
            corpus = open_tokens(f"{stem}.idx")
            documents = [document.tolist() for document in corpus.documents]
        except (OSError, FileChangedError):
            continue
        seen += 1
        corpus.close()
    for thread in threads:
        thread.join()
    documents = [document.tolist() for document in open_tokens(f"{stem}.idx").documents]
    assert documents in ([[1] * 3, [1] * 7], [[2] * 6, [2] * 4])


def test_a_link_stays_one_and_a_device_is_left_alone(tmp_path):
    target, link = tmp_path / "target.bin", tmp_path / "link.bin"
    link.symlink_to(target)
    write_tokens(link, [np.arange(5)], dtype="u2")
    assert link.is_symlink()
    assert np.fromfile(target, "u2").tolist() == [0, 1, 2, 3, 4]
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not to a device, FIFO or socket") as caught:
        write_tokens(tmp_path / "fifo", [np.arange(5)], dtype="u2")
    assert caught.value.errno == errno.EINVAL
    assert caught.value.filename == str(tmp_path / "fifo")
    assert stat.S_ISFIFO(os.stat(tmp_path / "fifo").st_mode)
