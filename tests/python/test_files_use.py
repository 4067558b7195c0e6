"""Reading, viewing, advising, warming, evicting, locking, checking, refreshing, closing."""

import ctypes
import errno
import gc
import os
import re
import weakref
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagestream import MappedFile, _native
from pagestream.errors import FileChangedError
from pagestream.files.mapped_file import Advice

from support import real
from support.mappings import flags_of, mappings_of, place_in_file
from support.page_cache import seen_once
from support.process import PROGRAMS, output_of

CONTENT = np.random.default_rng(0).bytes(70_001)
MODES = ["shared", "private", "read"]


@pytest.fixture(scope="module")
def random_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("mapping") / "random"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("guard", ["on", "off"])
@pytest.mark.parametrize("mode", MODES)
def test_every_length_and_alignment_is_copied_exactly(random_file, mode, guard):
    """Covers lengths around each limit of the copy routines, and every pair of alignments within 16 bytes."""
    code = PROGRAMS / "files_use/every_length_and_alignment_is_copied_exactly.py"
    assert output_of(code, random_file, mode, PAGESTREAM_FAULT_GUARD=guard) == "equal"


@settings(max_examples=50)
@given(st.data())
def test_any_range_reads_and_views_as_slicing_does(random_file, data):
    f = MappedFile(random_file, mode=data.draw(st.sampled_from(MODES)))
    offset = data.draw(st.integers(0, len(CONTENT)))
    length = data.draw(st.integers(0, len(CONTENT) - offset))
    assert f.read(offset, length) == CONTENT[offset : offset + length]
    assert bytes(f.view(offset, length)) == CONTENT[offset : offset + length]
    assert f.read(offset) == CONTENT[offset:]


def test_a_large_read_goes_in_chunks(tmp_path):
    path = tmp_path / "large"
    numbers = np.arange(20 << 20, dtype="u8")  # 160 MiB: more than two chunks
    numbers.tofile(path)
    assert np.array_equal(np.frombuffer(MappedFile(path).read(), "u8"), numbers)


def test_the_buffer_protocol_gives_the_mapping_itself_read_only(token_file):
    f = MappedFile(token_file)
    array = np.frombuffer(f, "u2")
    assert place_in_file(array, token_file) == (0, "rw-p")
    assert not array.flags.writeable
    assert memoryview(f).readonly
    assert f.view(100, 50).readonly
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_in_read_mode_the_buffer_protocol_says_why_not(token_file):
    with pytest.raises(
        BufferError, match=r'tokens.bin: in "read" mode.*use read\(\), read_into\(\) or view\(\)'
    ):
        memoryview(MappedFile(token_file, mode="read"))


def test_read_into_takes_whatever_is_writable_and_contiguous(token_file):
    import ctypes
    import mmap

    import ml_dtypes

    buffers = [
        bytearray(8),
        (ctypes.c_int * 2)(),
        np.empty((), "u8"),
        np.empty(4, ml_dtypes.bfloat16),
        np.empty(1, "M8[s]"),
        mmap.mmap(-1, 8),
        np.empty((2, 2, 2), "u1"),
    ]
    f = MappedFile(token_file)
    for buffer in buffers:
        assert f.read_into(buffer, 2) == 8
        raw = buffer.tobytes() if isinstance(buffer, np.ndarray) else bytes(buffer)
        assert np.frombuffer(raw, "u2").tolist() == [1, 2, 3, 4], type(buffer)


def test_a_buffer_that_cannot_be_written_after_all_is_not_blamed_on_the_file(token_file):
    target = token_file.with_suffix(".target")
    target.write_bytes(bytes(8192))
    out = np.memmap(target, "u1", "r+")
    os.truncate(target, 0)
    with pytest.raises(BufferError, match="the buffer to read into cannot be written"):
        MappedFile(token_file).read_into(out)


@pytest.mark.parametrize("buffer", [b"constant", memoryview(b"constant")])
def test_read_into_refuses_what_cannot_be_written(token_file, buffer):
    with pytest.raises(TypeError, match="read-only"):
        MappedFile(token_file).read_into(buffer)


def test_read_into_refuses_what_has_gaps(token_file):
    with pytest.raises(TypeError, match="C-contiguous"):
        MappedFile(token_file).read_into(np.empty(16, "u1")[::2])


def test_read_into_fills_any_type_and_stops_at_the_end(token_file):
    out = np.full((2, 3), -1, "i4")
    assert MappedFile(token_file).read_into(out, 8192 - 8) == 8
    assert out.ravel()[:2].view("u2").tolist() == [4092, 4093, 4094, 4095]
    assert (out.ravel()[2:] == -1).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "advice", ["normal", "random", "sequential", "willneed", "dontneed", "cold", "hugepage"]
)
def test_advice_is_taken_as_far_as_the_kernel_knows_it(token_file, mode, advice):
    f = MappedFile(token_file, mode=mode)
    taken = (f.advise(advice), f.advise(advice, 100, 5000), f.advise(advice, 5, 10))
    assert f.read() == token_file.read_bytes()
    if mode == "read":
        # posix_fadvise(2) has no equivalent of the other words.
        assert taken == (advice in ("normal", "random", "sequential", "willneed"),) * 3
    elif advice != "hugepage":  # kernels can be built without huge pages
        assert taken == (True, True, True)


@pytest.mark.parametrize("is_viewed_before", [True, False])
def test_advice_reaches_arrays_too(token_file, is_viewed_before):
    """The first array creates a separate mapping for all arrays."""
    f = MappedFile(token_file)
    arrays = [np.frombuffer(f, "u2")] if is_viewed_before else []
    f.advise("random")
    arrays.append(np.frombuffer(f, "u2"))
    flags = flags_of(token_file)
    assert len(flags) == 2
    assert all("rr" in each for each in flags)
    f.advise("normal")
    assert not any("rr" in each for each in flags_of(token_file))


def test_evict_drops_pages_under_arrays_and_keeps_what_was_written(big_file):
    f = MappedFile(big_file)
    array = np.frombuffer(f, "u1")
    expected = array.copy()
    ctypes.memset(array.ctypes.data, 7, 1)  # as torch does, which ignores the flag
    f.evict()
    # The written page is private to this process, so its page of the cache is empty too.
    assert f.residency().fraction == 0.0
    assert array[0] == 7
    assert np.array_equal(array[1:], expected[1:])


def test_advice_that_does_not_exist_lists_what_does(token_file):
    with pytest.raises(ValueError, match=r"\"normal\", \"random\", .* or \"hugepage\", not 'populate'"):
        MappedFile(token_file).advise("populate")


@pytest.mark.parametrize("mode", MODES)
def test_evict_empties_the_cache_and_warm_fills_it(big_file, mode):
    f = MappedFile(big_file, mode=mode)
    f.evict()
    cold = f.residency()
    assert (cold.fraction, cold.exact, cold.method) == (
        0.0,
        True,
        "cachestat" if mode == "read" else "mincore",
    )
    f.warm(1 << 20, 2 << 20)
    pages = f.residency().pages
    assert pages is not None
    assert pages.shape == ((16 << 20) // os.sysconf("SC_PAGESIZE"),)

    def is_cached(offset, length):
        f.warm(offset, length)
        return f.residency(offset, length).pages.all() and f.residency(offset, length).fraction == 1.0

    assert seen_once(lambda: is_cached(1 << 20, 2 << 20))
    assert seen_once(lambda: is_cached(0, 16 << 20))


def test_warm_leaves_the_resident_set_alone(big_file):
    code = PROGRAMS / "files_use/warm_leaves_the_resident_set_alone.py"
    assert int(output_of(code, big_file)) < 1024  # KiB, where the file has 16 MiB


def test_warm_on_a_direct_io_mount_warms_the_mapping(direct_mount):
    (direct_mount / "f").write_bytes(bytes(4 << 20))
    f = MappedFile(direct_mount / "f")
    f.evict()
    assert f.residency().fraction == 0.0
    f.warm()
    assert (f.mode, f.residency().fraction) == ("private", 1.0)


def test_warm_reports_progress_and_stops_on_an_exception(big_file):
    seen = []
    f = MappedFile(big_file)
    f.warm(progress=lambda done, total: seen.append((done, total)))
    assert seen == [(8 << 20, 16 << 20), (16 << 20, 16 << 20)]

    def stop(done, total):
        raise InterruptedError(done, total)

    with pytest.raises(InterruptedError) as caught:
        f.warm(progress=stop)
    assert caught.value.args == (8 << 20, 16 << 20)


def test_residency_does_not_trust_mincore_for_a_stranger(big_file):
    """To a user without write permission, the kernel reports that the whole file is cached."""
    if os.geteuid() != 0:
        real.missing("root, to become another user")
    for parent in [big_file, *list(big_file.parents)[:-2]]:
        parent.chmod(0o755)
    big_file.chmod(0o644)
    code = PROGRAMS / "files_use/residency_does_not_trust_mincore_for_a.py"
    assert output_of(code, big_file) == "preadv2 False 1.0"


@pytest.mark.parametrize("mode", ["shared", "read"])
def test_residency_of_more_pages_than_can_be_listed_is_a_fraction(tmp_path, mode):
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(1 << 42)
        os.pwrite(file.fileno(), b"x", 0)
    found = MappedFile(path, mode=mode).residency()
    assert (found.pages, found.method, found.exact) == (None, "cachestat", True)
    assert 0 < found.fraction < 1e-6


def test_residencies_can_be_compared(token_file):
    f = MappedFile(token_file)
    assert f.residency() == f.residency()


def test_unknown_residency_is_not_a_number(cached_mount):
    """FUSE lacks RWF_NOWAIT, and the kernel reports no residency to a user without write permission."""
    if os.geteuid() != 0:
        real.missing("root, to become another user")
    path = cached_mount / "f"
    path.write_bytes(bytes(1 << 20))
    code = PROGRAMS / "files_use/residency_that_nobody_can_tell_is_not.py"
    assert output_of(code, path) == "unavailable False True None"


def test_lock_and_unlock(token_file):
    def locked_kib():
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("VmLck"))

    f = MappedFile(token_file)
    before = locked_kib()
    f.lock()
    assert locked_kib() - before == 8
    f.unlock()
    assert locked_kib() == before


def test_lock_beyond_the_limit_names_the_limit(big_file):
    for parent in [big_file, *list(big_file.parents)[:-2]]:
        parent.chmod(0o755)
    code = PROGRAMS / "files_use/lock_beyond_the_limit_names_the_limit.py"
    for limit, number in ((0, "EPERM"), (65536, "ENOMEM")):
        text = output_of(code, big_file, limit)
        assert text.startswith(f"{number} cannot lock the mapping in memory")
        assert f"RLIMIT_MEMLOCK (ulimit -l) allows {limit} bytes" in text
        assert "CAP_IPC_LOCK" in text


def test_in_read_mode_there_is_nothing_to_lock(token_file):
    f = MappedFile(token_file, mode="read")
    for act in (f.lock, f.unlock):
        with pytest.raises(ValueError, match=r'nothing to (un)?lock: in "read" mode'):
            act()


def rewrite(path):
    with open(path, "r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(0, 5))


def replace(path):
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


CHANGES = {
    "it was truncated from 8192 to 100 bytes": lambda path: os.truncate(path, 100),
    "it grew from 8192 to 9000 bytes; open it again, or call refresh": lambda path: os.truncate(path, 9000),
    "it was written to while it was open, at ": rewrite,
    "it was deleted while it was open; expected a file of 8192 bytes": os.unlink,
    "another file|deleted while": replace,
    "no longer leads to it: ENOENT": lambda path: os.rename(path, path.with_suffix(".moved")),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", CHANGES)
def test_check_notices_each_change(token_file, mode, what):
    f = MappedFile(token_file, mode=mode)
    f.check()
    CHANGES[what](token_file)
    with pytest.raises(FileChangedError, match=what) as caught:
        f.check()
    assert (caught.value.errno, caught.value.filename) == (errno.ESTALE, str(token_file))


def test_check_notices_that_the_path_names_another_file(token_file):
    f = MappedFile(token_file)
    os.link(token_file, token_file.with_suffix(".kept"))
    replace(token_file)
    with pytest.raises(FileChangedError, match="its path now names another file"):
        f.check()


def test_check_knows_the_file_after_a_change_of_directory(token_file, monkeypatch):
    monkeypatch.chdir(token_file.parent)
    f = MappedFile("tokens.bin")
    monkeypatch.chdir("/")
    f.check()
    assert f.path == "tokens.bin"


def test_a_rewritten_file_is_not_read(token_file):
    f = MappedFile(token_file)
    rewrite(token_file)
    with pytest.raises(FileChangedError, match="written to"):
        f.read(0, 10)


def test_a_file_that_grows_can_be_read_and_refreshed_and_old_views_stay(token_file):
    f = MappedFile(token_file)
    old = np.frombuffer(f, "u2")
    with open(token_file, "ab") as file:
        file.write(bytes(10_000))
    with pytest.raises(
        FileChangedError, match=r"grew from 8192 to 18192 bytes; open it again, or call refresh\(\)"
    ):
        f.read(0, 4)
    assert (f.size, f.refresh(), f.size) == (8192, 18192, 18192)
    assert f.read(8192) == bytes(10_000)
    assert f.read(0, 4) == bytes([0, 0, 1, 0])
    assert np.frombuffer(f, "u2").shape == (9096,)
    assert old.tolist() == list(range(4096))
    f.check()
    assert len(mappings_of(token_file)) == 3
    del old
    assert len(mappings_of(token_file)) == 2


def test_a_file_that_did_not_grow_is_not_refreshed(token_file):
    f = MappedFile(token_file)
    assert f.refresh() == 8192
    os.truncate(token_file, 100)
    with pytest.raises(FileChangedError, match="truncated from 8192 to 100"):
        f.refresh()


def test_lock_and_advice_hold_for_what_was_appended(token_file):
    def flags_and_locked():
        smaps = Path("/proc/self/smaps").read_text().split(str(token_file))[-1]
        return re.search(r"VmFlags: (.*)", smaps)[1], re.search(r"Locked: +(\d+)", smaps)[1]

    f = MappedFile(token_file)
    f.lock()
    f.advise("random")
    with open(token_file, "ab") as file:
        file.write(bytes(8192))
    f.refresh()
    flags, locked_kib = flags_and_locked()
    assert "rr" in flags.split()
    assert int(locked_kib) == 16
    f.unlock()
    assert "lo" not in flags_and_locked()[0].split()


def test_an_empty_file_that_grows_is_mapped(tmp_path):
    path = tmp_path / "empty"
    path.touch()
    f = MappedFile(path)
    path.write_bytes(b"now")
    assert f.refresh() == 3
    assert bytes(memoryview(f)) == b"now"


def test_after_closing_only_views_work(token_file):
    f = MappedFile(token_file)
    view = f.view(2, 2)
    array = np.frombuffer(f, "u2")
    f.close()
    f.close()
    assert f.closed
    assert (bytes(view), array[7]) == (b"\1\0", 7)
    assert (f.size, f.mode, f.path) == (8192, "shared", str(token_file))
    uses = (
        f.read,
        f.view,
        f.residency,
        f.warm,
        f.evict,
        f.lock,
        f.check,
        f.refresh,
        lambda: f.advise("random"),
    )
    for use in uses:
        with pytest.raises(ValueError, match="the file is closed"):
            use()
    with pytest.raises(BufferError, match="the file is closed"):
        memoryview(f)
    assert len(mappings_of(token_file)) == 1
    view.release()
    del array
    assert mappings_of(token_file) == []


def test_a_with_block_closes(token_file):
    with MappedFile(token_file) as f:
        assert not f.closed
    assert f.closed
    assert mappings_of(token_file) == []


def test_the_last_view_frees_the_mapping(token_file):
    f = MappedFile(token_file)
    gone = weakref.ref(f)
    arrays = [np.frombuffer(f, "u2"), np.asarray(f.view()), np.frombuffer(f, "u1")[5:]]
    del f
    gc.collect()
    while arrays:
        assert len(mappings_of(token_file)) == 1
        arrays.pop()
    assert mappings_of(token_file) == []
    assert gone() is None


def test_its_text_tells_path_size_and_mode(token_file):
    f = MappedFile(token_file)
    assert repr(f) == f"<MappedFile {str(token_file)!r} 8192 bytes, shared>"
    f.close()
    assert repr(f).endswith("closed>")


@pytest.mark.frameworks
@pytest.mark.parametrize("maker", ["ndarray", "ndarray of a memoryview", "torch", "frombuffer", "view"])
@pytest.mark.parametrize("end", ["close", "refresh", "close after refresh", "with", "delete"])
def test_objects_made_from_the_file_stay_valid(random_file, tmp_path, maker, end):
    """NumPy and torch keep the object and release its buffer."""
    path = tmp_path / "f"
    path.write_bytes(random_file.read_bytes())
    code = PROGRAMS / "files_use/what_was_made_stays_valid.py"
    assert output_of(code, path, maker, end, with_torch=True, has_brief_end=True).split() == ["True", "0"]


def test_words_of_advice_are_those_of_the_core():
    assert get_args(Advice) == _native.ADVICE


def test_sampling_residency_keeps_the_advice_of_a_descriptor(big_file, tmp_path):
    """Another thread may be reading at random, so read-ahead must never be switched on in between."""
    if os.geteuid() != 0:
        real.missing("root, to become another user, to whom the kernel does not tell residency")
    for parent in [big_file, *list(big_file.parents)[:-2]]:
        parent.chmod(0o755)
    big_file.chmod(0o644)
    code = PROGRAMS / "files_use/to_sample_residency_leaves_the_advice_of.py"
    log = tmp_path / "log"
    log.touch()
    log.chmod(0o666)
    wrapper = (real.need_tool("strace"), "-f", "-qq", "-e", "trace=fadvise64", "-o", str(log))
    assert output_of(code, big_file, wrapper=wrapper) == "preadv2"
    calls = [line for line in log.read_text().splitlines() if "fadvise64(" in line]
    assert len(calls) >= 2
    assert [call for call in calls if "POSIX_FADV_RANDOM" not in call] == []
