"""Read-ahead under every name: tensors requested one by one arrive at the rate of the mount."""

import contextlib
import ctypes
import errno
import importlib
import json
import os
import random
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy

from pagestream import MappedFile, open_checkpoint
from pagestream.errors import FileChangedError, MappedReadError
from pagestream.safetensors import safe_open
from pagestream.safetensors.numpy import load_file
from pagestream.safetensors.torch import load_file as load_torch

from support import real
from support.mappings import place_in_file
from support.process import PROGRAMS, open_descriptors, output_of, thread_names, threads_end, until
from support.rest import sleep_ends, threads_rest, waits_of

MIB = 1 << 20
TENSORS = 48
WHOLE = TENSORS * MIB

both_mounts = pytest.mark.parametrize("direct", [False, True], ids=["cached", "direct_io"])


def tensor(number):
    return np.full(MIB, number, "u1")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Returns a file whose data follow the order of the names."""
    folder = tmp_path_factory.mktemp("lead")
    tensors = {f"t{number:02}": tensor(number) for number in range(TENSORS)}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


@contextlib.contextmanager
def slow_mount(source, tmp_path, **options):
    with MappedFile(source / "model.safetensors") as file:
        file.evict()
    with real.slow_fuse(source, tmp_path / "slow", **{"delay_ms": 20, **options}) as slow:
        yield slow


def one_by_one(path, framework="np", **options):
    with safe_open(path, framework, **options) as file:
        for number, name in enumerate(file.keys()):
            found = file.get_tensor(name)
            assert int(found.sum()) == number * MIB


def through_checkpoint(path):
    with open_checkpoint(path) as weights:
        for number, array in enumerate(weights.values()):
            assert array.sum() == number * MIB
            assert not array.flags.writeable


def at_once(path, load=load_file):
    for number, found in enumerate(load(path).values()):
        assert int(found.sum()) == number * MIB


WAYS = {
    "safe_open, NumPy": one_by_one,
    "safe_open, torch": lambda path: one_by_one(path, "pt"),
    "safe_open, mmap_mode=read": lambda path: one_by_one(path, mmap_mode="read"),
    "open_checkpoint": through_checkpoint,
    "load_file, NumPy": at_once,
    "load_file, torch": lambda path: at_once(path, load_torch),
}


@both_mounts
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_many_requests_are_in_flight_and_each_byte_is_read_once(source, tmp_path, way, direct):
    with slow_mount(source, tmp_path, direct_io=direct, gather=12) as slow:
        way(slow.path / "model.safetensors")
    assert slow.counts["most_in_flight"] >= 12
    assert WHOLE <= slow.counts["read_bytes"] <= 1.05 * WHOLE


# 16 KiB is less than the 128 KiB of most mounts, and 1 MiB is FUSE's maximum.
@pytest.mark.parametrize("read_ahead_bytes", [16384, 131072, MIB])
def test_requests_are_as_large_as_the_mount_allows(source, tmp_path, read_ahead_bytes):
    with slow_mount(source, tmp_path, read_ahead_bytes=read_ahead_bytes) as slow:
        one_by_one(slow.path / "model.safetensors")
    expected_bytes = min(2 * read_ahead_bytes, MIB)
    assert slow.counts["largest_request_bytes"] >= expected_bytes
    # Page faults bring in some of the first tensors. The lead reopens the file, which drops these pages.
    assert WHOLE <= slow.counts["read_bytes"] <= 1.05 * WHOLE + 4 * read_ahead_bytes
    # While page faults and the lead read the same pages, they split each other's requests. On a quiet
    # machine, 90 % of the bytes come in requests of this size. If requests had half the size, none would.
    large_bytes = sum(slow.counts["read_bytes_by_size"][expected_bytes.bit_length() - 1 :])
    assert large_bytes >= 0.45 * WHOLE


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Makes a folder with one file, whose tensors have one page each."""
    folder = tmp_path_factory.mktemp("small")
    tensors = {f"t{number:04}": np.full(4096, number % 251, "u1") for number in range(4096)}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("shuffles", [False, True], ids=["in order", "random"])
def test_small_tensors_come_in_large_requests(small, tmp_path, shuffles):
    """Like a page fault, each request includes neighbouring tensors."""
    with (
        slow_mount(small, tmp_path, delay_ms=1, keep_cache=True) as slow,
        safe_open(slow.path / "model.safetensors", "np") as file,
    ):
        names = list(file.keys())
        if shuffles:
            random.Random(0).shuffle(names)
        for name in names:
            assert file.get_tensor(name)[7] == int(name[1:]) % 251
    size_bytes = 4096 * 4096
    assert size_bytes <= slow.counts["read_bytes"] <= 1.1 * size_bytes
    # 128 KiB each, but for the ends of blocks that page faults have begun.
    assert slow.counts["read_requests"] <= 3 * size_bytes / (128 << 10)


@both_mounts
def test_files_of_some_mebibytes_are_read_ahead(tmp_path, direct):
    source = tmp_path / "source"
    source.mkdir()
    tensors = {f"t{number}": tensor(number) for number in range(6)}
    safetensors.numpy.save_file(tensors, source / "model.safetensors")
    with slow_mount(source, tmp_path, direct_io=direct, keep_cache=True, gather=12) as slow:
        one_by_one(slow.path / "model.safetensors")
    assert slow.counts["most_in_flight"] >= 12
    assert slow.counts["read_bytes"] <= 1.1 * 6 * MIB


def test_a_rewritten_file_does_not_resume_where_it_was_left(source, tmp_path):
    """The file was closed a moment ago during read-ahead. Its size and modification time are unchanged."""
    folder = tmp_path / "source"
    folder.mkdir()
    path = folder / "model.safetensors"
    shutil.copy2(source / path.name, path)
    with slow_mount(folder, tmp_path, delay_ms=1) as slow:
        mounted = slow.path / path.name
        with safe_open(mounted, "np") as file:
            assert file.get_tensor("t00")[0] == 0
            assert file.get_tensor("t01")[0] == 1
        before, written = path.stat(), path.read_bytes()
        with path.open("r+b") as file:
            file.write(written.replace(b'"t00"', b'"x00"'))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with safe_open(mounted, "np") as file:
            names = list(file.keys())
        assert "x00" in names


def rewritten_in_one_second(path, mounted):
    """Uses a newly written file for a moment, and then rewrites it with other names.

    Returns whether both writes fell in the same second.
    """
    path.write_bytes(path.read_bytes())
    before, written = path.stat(), path.read_bytes()
    with safe_open(mounted, "np") as file:
        assert file.get_tensor("t00")[0] == 0
        assert file.get_tensor("t01")[0] == 1
    with path.open("r+b") as file:
        file.write(written.replace(b'"t00"', b'"x00"'))
    return before.st_ctime_ns // 10**9 == path.stat().st_ctime_ns // 10**9


@both_mounts
def test_no_file_resumes_if_times_are_whole_seconds(tmp_path, direct):
    """A file rewritten within a second of its opening keeps the same times."""
    folder = tmp_path / "source"
    folder.mkdir()
    path = folder / "model.safetensors"
    tensors = {f"t{number:02}": tensor(number) for number in range(8)}
    safetensors.numpy.save_file(tensors, path)
    with slow_mount(folder, tmp_path, delay_ms=0, direct_io=direct, whole_seconds=True) as slow:
        while not rewritten_in_one_second(path, slow.path / path.name):
            safetensors.numpy.save_file(tensors, path)
        with safe_open(slow.path / path.name, "np") as file:
            assert file.keys()[-1] == "x00"


@both_mounts
def test_no_shard_is_read_in_vain_if_times_are_whole_seconds(shards, tmp_path, direct):
    with slow_shards(shards, tmp_path, direct_io=direct, whole_seconds=True) as slow:
        for number, path in enumerate(sorted(slow.path.iterdir()), 1):
            with safe_open(path, "np") as file:
                assert sums(file, file.keys()) == list(range(16 * number, 16 * number + 16))
    assert WHOLE <= slow.counts["read_bytes"] <= SHARDS_ONCE


@both_mounts
def test_without_a_lead_requests_come_one_after_another(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct, delay_ms=1) as slow:
        one_by_one(slow.path / "model.safetensors", ahead=False)
    assert slow.counts["most_in_flight"] <= 4


@both_mounts
def test_a_program_that_only_opens_and_lists_reads_the_header(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct) as slow:
        with safe_open(slow.path / "model.safetensors", "np") as file:
            assert len(file.keys()) == TENSORS
            file.get_slice("t07").get_shape()
        with open_checkpoint(slow.path / "model.safetensors") as weights:
            assert weights.info("t07").nbytes == MIB
    assert slow.counts["read_bytes"] <= 256 * 1024


def natural_sorted(names):
    return sorted(names, key=lambda name: int(name.split(".")[1]))


@both_mounts
@pytest.mark.parametrize("asked", [sorted, natural_sorted], ids=["by name", "by layer"])
def test_the_lead_follows_names_if_the_data_have_another_order(tmp_path, asked, direct):
    numbers = list(range(TENSORS))
    random.Random(3).shuffle(numbers)
    folder = tmp_path / "source"
    folder.mkdir()
    names = shuffled_file(folder / "model.safetensors", numbers)
    with slow_mount(folder, tmp_path, direct_io=direct, gather=12) as slow:
        file = safe_open(slow.path / "model.safetensors", "np")
        assert file.offset_keys() == names
        for name in asked(names):
            assert file.get_tensor(name).sum() == int(name.split(".")[1]) * MIB
        file.close()
    assert slow.counts["most_in_flight"] >= 12
    # The first two layers fit both orders. After a wrong guess, bytes are read again, but at most once.
    assert WHOLE <= slow.counts["read_bytes"] <= 2.1 * WHOLE


def shuffled_file(path, numbers):
    """Writes a file with tensors of these numbers, in this data order. Returns their names."""
    names = [f"layers.{number}.w" for number in numbers]
    header = {
        name: {"dtype": "U8", "shape": [MIB], "data_offsets": [place * MIB, (place + 1) * MIB]}
        for place, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    data = b"".join(tensor(number).tobytes() for number in numbers)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return names


@both_mounts
def test_jumps_back_and_forth_read_little_beyond_the_requests(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct, delay_ms=1) as slow:
        file = safe_open(slow.path / "model.safetensors", "np", ahead=2 * MIB)
        for number in (40, 3, 27):
            assert file.get_tensor(f"t{number:02}").sum() == number * MIB
        assert threads_rest()
        file.close()
    # Each of the three jumps reads a tensor, the lead with a step in flight, and the pages around a fault.
    assert slow.counts["read_bytes"] <= 3 * (MIB + 2 * MIB + MIB) + MIB


@both_mounts
@pytest.mark.parametrize(
    ("fewest", "most", "tensor_bytes"), [(2, 2, 2048), (3, 3, 65_536), (2, 4, 4096)], ids=["2", "3", "2 to 4"]
)
def test_a_few_neighbours_at_a_time_are_read_as_without_a_lead(tmp_path, fewest, most, tensor_bytes, direct):
    """Such a program jumps and leaves its read-ahead behind."""
    folder = tmp_path / "source"
    folder.mkdir()
    count = 16 * MIB // tensor_bytes
    tensors = {f"t{number:05}": np.full(tensor_bytes, number % 251, "u1") for number in range(count)}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    draw = random.Random(7)
    firsts = draw.sample(range(0, count - most, most), 60)
    numbers = [first + each for first in firsts for each in range(draw.randint(fewest, most))]
    read_bytes = {}
    for ahead in (None, False):
        with slow_mount(folder, tmp_path, direct_io=direct, delay_ms=1) as slow:
            with safe_open(slow.path / "model.safetensors", "np", ahead=ahead) as file:
                for number in numbers:
                    assert np.array_equal(file.get_tensor(f"t{number:05}"), tensors[f"t{number:05}"])
            assert threads_end("pagestream-read")
            assert threads_end("pagestream-lead")
        (tmp_path / "slow").rmdir()
        read_bytes[ahead] = slow.counts["read_bytes"]
    # The kernel's read-ahead is doubled, and two leads are wasted before the pattern is recognised.
    assert read_bytes[None] <= 2.2 * read_bytes[False] + 3 * MIB, read_bytes


@both_mounts
def test_runs_of_equal_length_read_little_else(tmp_path, direct):
    """A lead that doubled within each run of neighbours would read twice as much."""
    folder = tmp_path / "source"
    folder.mkdir()
    tensors = {f"t{number:03}": np.full(MIB // 4, number, "u1") for number in range(192)}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    firsts = [75 * row % 192 for row in range(24)]
    with slow_mount(folder, tmp_path, direct_io=direct, delay_ms=1) as slow:
        with safe_open(slow.path / "model.safetensors", "np") as file:
            for number in (first + each for first in firsts for each in range(3)):
                assert np.array_equal(file.get_tensor(f"t{number:03}"), tensors[f"t{number:03}"])
        assert threads_end("pagestream-read")
        assert threads_end("pagestream-lead")
    # The pattern shows after two runs. On the cached mount, page faults bring in neighbouring pages.
    assert slow.counts["read_bytes"] <= 1.6 * 24 * 3 * MIB // 4 + 3 * MIB


@both_mounts
def test_tensors_of_layers_in_the_order_of_modules_are_read_once(tmp_path, direct):
    """Streams that drop the gaps between tensors would read them again later: twice as many bytes."""
    folder = tmp_path / "source"
    folder.mkdir()
    modules = ["q", "k", "v", "o", "gate", "up", "down", "norm"]
    names = [f"layers.{layer:02}.{module}" for layer in range(12) for module in modules]
    tensors = {name: np.full(MIB // 2, number, "u1") for number, name in enumerate(names)}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with slow_mount(folder, tmp_path, direct_io=direct, delay_ms=1) as slow:
        with safe_open(slow.path / "model.safetensors", "np") as file:
            for name, tensor in tensors.items():
                assert np.array_equal(file.get_tensor(name), tensor)
        assert threads_end("pagestream-read")
        assert threads_end("pagestream-lead")
    # A stream may be dropped before the order is recognised: on a busy machine, 54 MiB are read instead of
    # 48. Without a recognised order, it would be 96 MiB.
    assert slow.counts["read_bytes"] <= 1.5 * len(names) * MIB // 2


def test_without_a_lead_the_read_ahead_of_page_faults_is_doubled_for_a_cold_file(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    safetensors.numpy.save_file({"t": np.ones(8 * MIB, "u1")}, folder / "model.safetensors")
    with (
        slow_mount(folder, tmp_path, read_ahead_bytes=128 << 10) as slow,
        safe_open(slow.path / "model.safetensors", "np", ahead=False) as file,
    ):
        assert file.get_slice("t")[:1].tolist() == [1]
        assert int(file.get_tensor("t").sum()) == 8 * MIB
    assert slow.counts["largest_request_bytes"] == 256 << 10


@both_mounts
@pytest.mark.parametrize("ahead", [None, False])
def test_random_short_parts_take_a_window_each(source, tmp_path, ahead, direct):
    """The read-ahead of page faults doubles only when the program requests more than one window."""
    window_bytes, part_bytes = 128 << 10, 4096
    options = {"delay_ms": 1, "read_ahead_bytes": window_bytes, "direct_io": direct}
    numbers = random.Random(0).sample(range(TENSORS), 24)
    with (
        slow_mount(source, tmp_path, **options) as slow,
        safe_open(slow.path / "model.safetensors", "np", ahead=ahead) as file,
    ):
        for number in numbers:
            first = number * 5 * part_bytes
            part = file.get_slice(f"t{number:02}")[first : first + part_bytes]
            assert int(part.sum()) == number * part_bytes
    # This includes the header and the read-ahead of a lead that has not found an order yet.
    assert slow.counts["read_bytes"] <= 3 * len(numbers) // 2 * window_bytes


@both_mounts
def test_closing_stops_the_lead(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct, delay_ms=0) as slow:
        with safe_open(slow.path / "model.safetensors", "np") as file:
            assert file.get_tensor("t00")[0] == 0
            assert file.get_tensor("t01")[0] == 1
        assert threads_end("pagestream-lead")
        assert threads_end("pagestream-read")
    assert slow.counts["read_bytes"] < WHOLE


def resident_share(array):
    """Returns the fraction of a mapped array's whole pages that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    address = -(-array.ctypes.data // 4096) * 4096
    pages = (array.ctypes.data + array.nbytes - address) // 4096
    found = (ctypes.c_ubyte * pages)()
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(pages * 4096), found) == 0
    return sum(each & 1 for each in found) / pages


def becomes_resident(array):
    """Returns whether most of an array enters the page cache. Only read-ahead brings in pages here.

    The array may never be complete, because the kernel reclaims pages (DAMON).
    """
    return until(lambda: resident_share(array) >= 0.5)


def test_arrays_handed_out_are_read_ahead_after_the_file_is_closed(source, tmp_path):
    """Programs may take all tensors, close the file, and use the tensors later."""
    with slow_mount(source, tmp_path, delay_ms=20) as slow:
        with safe_open(slow.path / "model.safetensors", "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert until(lambda: slow.gate.counts()["read_bytes"] >= WHOLE)
        assert threads_end("pagestream-lead")
        del arrays
    assert WHOLE <= slow.counts["read_bytes"] <= 1.02 * WHOLE


def test_a_file_of_one_large_tensor_is_in_memory_once_it_is_loaded(tmp_path):
    """No request for another tensor shows that the program continues."""
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file({"only": np.full(WHOLE, 7, "u1")}, source / "model.safetensors")
    with slow_mount(source, tmp_path, gather=12) as slow:
        array = load_file(slow.path / "model.safetensors")["only"]
        assert until(lambda: slow.gate.counts()["read_bytes"] >= WHOLE)
        del array
    assert slow.counts["most_in_flight"] >= 12
    assert WHOLE <= slow.counts["read_bytes"] <= 1.02 * WHOLE


def test_dropped_arrays_are_not_read(source, tmp_path):
    # The mount delivers 1 MiB a second, so most of the file is unread when the last tensor is requested.
    with slow_mount(source, tmp_path, delay_ms=500, background=4) as slow:
        with safe_open(slow.path / "model.safetensors", "np", ahead=2 * MIB) as file:
            for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                file.get_tensor(name)
        assert threads_end("pagestream-lead")
    assert slow.counts["read_bytes"] < WHOLE


@pytest.mark.parametrize(
    ("delay_ms", "read_ahead_bytes", "has_lead"),
    # The kernel's doubled window is in time if it arrives at 4 GiB/s: 4 MiB in 1 ms, 16 MiB in 4 ms, 1 GiB in
    # 250 ms.
    [(0, 512 * MIB, False), (20, 8 * MIB, True), (0, MIB, True)],
    ids=["large window", "large window, slow", "small window"],
)
def test_files_that_the_kernel_reads_in_time_have_no_lead(
    source, tmp_path, delay_ms, read_ahead_bytes, has_lead
):
    options = {"delay_ms": delay_ms, "read_ahead_bytes": read_ahead_bytes}
    with slow_mount(source, tmp_path, **options) as slow:
        with safe_open(slow.path / "model.safetensors", "np", ahead=4 * MIB) as file:
            assert int(file.get_tensor("t01").sum()) == MIB
            if has_lead:
                # The lead waits until the program uses more.
                assert until(lambda: "pagestream-lead" in thread_names())
            else:
                assert int(file.get_tensor("t02").sum()) == 2 * MIB
                assert "pagestream-lead" not in thread_names()
        assert threads_end("pagestream-lead")


@both_mounts
def test_a_file_without_room_gets_its_lead_later(tmp_path, direct):
    folder = tmp_path / "source"
    folder.mkdir()
    tensors = {f"t{number:02}": tensor(number) for number in range(16)}
    for number in range(10):
        safetensors.numpy.save_file(tensors, folder / f"file{'abcdefghij'[number]}.safetensors")
    with slow_shards(folder, tmp_path, direct_io=direct) as slow:
        *others, last = [safe_open(path, "np", ahead=4 * MIB) for path in sorted(slow.path.iterdir())]
        for file in [*others, last]:
            file.get_tensor("t00")
        for file in others:
            file.close()
        del file, others
        # The closed files are released half a second later.
        reader = "pagestream-read" if direct else "pagestream-lead"
        assert threads_end(reader)

        def is_read_ahead():
            for number in (1, 2, 3):
                assert last.get_tensor(f"t{number:02}").sum() == number * MIB
            return reader in thread_names()

        assert until(is_read_ahead)
        last.close()


def test_files_in_memory_have_no_lead(source):
    # The lead of an earlier test ends a moment after its file is closed.
    assert threads_end("pagestream-lead")
    path = source / "model.safetensors"
    path.read_bytes()
    with safe_open(path, "np") as file:
        assert file.get_tensor("t00")[0] == 0
        assert "pagestream-lead" not in thread_names()
        assert file.mode == "private"


@both_mounts
def test_writes_stay_in_their_array(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct, delay_ms=1) as slow:
        path = slow.path / "model.safetensors"
        with safe_open(path, "np") as first, safe_open(path, "np") as second:
            for name in ("t00", "t01", "t02"):
                array = first.get_tensor(name)
                array[:] = 99
                assert second.get_tensor(name)[0] == int(name[1:])
        assert load_file(path)["t01"][5] == 1
    assert safe_open(source / "model.safetensors", "np").get_tensor("t01")[7] == 1


def test_a_failure_ahead_is_the_error_of_the_tensor_that_it_hits(source, tmp_path):
    failing = slow_mount(
        source, tmp_path, direct_io=True, delay_ms=1, fail_range=(20 * MIB + 8192, 20 * MIB + 12288)
    )
    with failing as slow, safe_open(slow.path / "model.safetensors", "np", mmap_mode="read") as file:
        for number in range(19):
            assert file.get_tensor(f"t{number:02}").sum() == number * MIB
        assert file.get_tensor("t19").sum() == 19 * MIB
        with pytest.raises(MappedReadError) as caught:
            file.get_tensor("t20")
        assert caught.value.filename == str(slow.path / "model.safetensors")
        assert file.get_tensor("t30").sum() == 30 * MIB


def test_an_error_of_read_ahead_keeps_its_number_and_offset(source, tmp_path):
    number = errno.ESTALE
    failing = slow_mount(source, tmp_path, direct_io=True, delay_ms=1, fail_after=60, errno=number)
    with failing as slow, safe_open(slow.path / "model.safetensors", "np") as file:
        names = list(file.keys())
        with pytest.raises(MappedReadError) as caught:
            [file.get_tensor(name) for name in names]
        # The error is raised only once.
        assert file.get_tensor(names[-1]).shape == (MIB,)
    assert caught.value.errno == number
    assert caught.value.offset > 4096
    assert caught.value.length <= MIB


@both_mounts
def test_a_child_of_a_fork_reads_by_itself(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct, delay_ms=1) as slow:
        path = slow.path / "model.safetensors"
        assert output_of(PROGRAMS / "weights_lead" / "forked.py", path) == f"{TENSORS} {TENSORS}"


def test_a_lead_needs_little_memory_of_its_own(source, tmp_path):
    with slow_mount(source, tmp_path, direct_io=True, delay_ms=1) as slow:
        path = slow.path / "model.safetensors"
        most_kib = int(output_of(PROGRAMS / "weights_lead" / "memory.py", path, 8 * MIB))
    # The limit covers the lead, the tensor in use, the next tensor, and small allocations.
    assert most_kib * 1024 <= (8 + 2 + 6) * MIB


@pytest.mark.parametrize(
    ("value", "message"),
    [(True, "ahead must be False or a number"), (0, "at least 1"), ("64MB", "ahead must be")],
)
def test_a_bad_argument_is_refused(source, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        safe_open(source / "model.safetensors", "np", ahead=value)


@pytest.mark.parametrize("value", ["", "on", "-1", "0", "1e6", "9" * 5000])
def test_a_bad_variable_is_named(source, value, monkeypatch):
    monkeypatch.setenv("PAGESTREAM_AHEAD", value)
    with pytest.raises(ValueError, match="PAGESTREAM_AHEAD is"):
        safe_open(source / "model.safetensors", "np")


def test_the_variable_turns_it_off_and_the_argument_wins(source, tmp_path, monkeypatch):
    monkeypatch.setenv("PAGESTREAM_AHEAD", "off")
    with slow_mount(source, tmp_path, direct_io=True, delay_ms=1) as slow:
        one_by_one(slow.path / "model.safetensors")
    assert slow.counts["most_in_flight"] <= 4
    with slow_mount(source, tmp_path, direct_io=True, gather=12) as slow:
        one_by_one(slow.path / "model.safetensors", ahead=32 * MIB)
    assert slow.counts["most_in_flight"] >= 12


def test_install_passes_it_on(source, tmp_path):
    for ahead, least, most in ((None, 12, 64), (False, 1, 4)):
        options = {"gather": 12} if ahead is None else {"delay_ms": 0}
        with slow_mount(source, tmp_path, direct_io=True, **options) as slow:
            path = slow.path / "model.safetensors"
            found = output_of(PROGRAMS / "weights_lead" / "installed.py", path, ahead)
            assert found == str(sum(range(TENSORS)) * MIB)
        assert least <= slow.counts["most_in_flight"] <= most
        os.rmdir(tmp_path / "slow")


LAYERS = 16
SIDE = 1024


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """Makes a model whose layers have two matrices and a vector each, and a table that occurs once."""
    folder = tmp_path_factory.mktemp("layers")
    rng = np.random.default_rng(5)
    tensors = {"embed": rng.integers(0, 9, (4 * SIDE, SIDE), "u1")}
    for layer in range(LAYERS):
        tensors[f"layers.{layer}.by_columns"] = rng.integers(0, 9, (SIDE, SIDE), "u1")
        tensors[f"layers.{layer}.by_rows"] = rng.integers(0, 9, (2 * SIDE, SIDE), "u1")
        tensors[f"layers.{layer}.norm"] = rng.integers(0, 9, SIDE, "u1")
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder, tensors


def part_of_rank(name):
    """Returns half of the columns, a quarter of the rows, or all of a vector."""
    if name.endswith("norm"):
        return np.s_[:]
    return np.s_[:, SIDE // 2 :] if name.endswith("by_columns") else np.s_[SIDE // 4 : SIDE // 2]


@both_mounts
@pytest.mark.parametrize("copy", [False, True])
def test_the_parts_of_a_rank_are_read_ahead_and_little_else(layers, tmp_path, direct, copy):
    folder, tensors = layers
    needed = 0
    with slow_mount(folder, tmp_path, direct_io=direct, gather=8) as slow:
        file = safe_open(slow.path / "model.safetensors", "np", copy=copy)
        for name in file.offset_keys():
            expected = tensors[name][part_of_rank(name)]
            found = file.get_slice(name)[part_of_rank(name)]
            np.testing.assert_array_equal(found, expected)
            assert found.flags.writeable
            needed += expected.nbytes
        file.close()
    # Columns are runs of 512 bytes, and the gaps between them are read too.
    between = LAYERS * SIDE * SIDE // 2
    assert slow.counts["most_in_flight"] >= 8
    assert needed <= slow.counts["read_bytes"] <= 1.2 * (needed + between) + MIB


@pytest.fixture(scope="module")
def norms(tmp_path_factory):
    """Makes a model whose layers have a small tensor and a large one."""
    folder = tmp_path_factory.mktemp("norms")
    tensors = {}
    for layer in range(LAYERS):
        tensors[f"layers.{layer:02}.norm"] = np.full(1024, layer, "u1")
        tensors[f"layers.{layer:02}.weight"] = np.full(2 * MIB, layer, "u1")
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


@both_mounts
def test_tensors_that_are_left_out_of_each_layer_are_not_read(norms, tmp_path, direct):
    with (
        slow_mount(norms, tmp_path, direct_io=direct, gather=8) as slow,
        safe_open(slow.path / "model.safetensors", "np") as file,
    ):
        for layer in range(LAYERS):
            assert (file.get_tensor(f"layers.{layer:02}.norm") == layer).all()
    assert slow.counts["most_in_flight"] >= 8, "the others are read ahead"
    # The kernel reads around the first faults.
    assert slow.counts["read_bytes"] <= (2 * MIB if direct else 8 * MIB)


@both_mounts
def test_reading_every_third_layer_skips_the_others(source, tmp_path, direct):
    kept = range(0, TENSORS, 3)
    with (
        slow_mount(source, tmp_path, direct_io=direct, gather=12) as slow,
        safe_open(slow.path / "model.safetensors", "np", ahead=8 * MIB) as file,
    ):
        assert sums(file, [f"t{number:02}" for number in kept]) == list(kept)
    assert slow.counts["most_in_flight"] >= 12
    # The pattern shows at the third tensor. By then, one lead has read tensors that the program skips.
    assert len(kept) * MIB <= slow.counts["read_bytes"] <= (len(kept) + 10) * MIB


def test_with_little_bandwidth_few_reads_compete_with_the_awaited_one(source, tmp_path):
    with (
        slow_mount(source, tmp_path, direct_io=True, delay_ms=2, bandwidth_bytes=8 * MIB) as slow,
        safe_open(slow.path / "model.safetensors", "np") as file,
    ):
        assert sums(file, file.keys()[:6]) == list(range(6))
    # All of the 64 threads would read if a request took long because of its delay.
    assert 2 <= slow.counts["most_in_flight"] <= 40


def test_a_lead_waits_while_the_program_reads_elsewhere(source, tmp_path):
    with (
        slow_mount(source, tmp_path, direct_io=True, delay_ms=0) as slow,
        safe_open(slow.path / "model.safetensors", "np") as file,
    ):
        slow.gate.hold(9 * MIB, 40 * MIB)
        assert sums(file, [*file.keys()[:8], "t40"]) == [*range(8), 40]
        slow.gate.wait_for(1)
        held_bytes = sum(length for _, length in slow.gate.held())
        slow.gate.open()
        assert threads_rest()
        read_bytes = slow.gate.counts()["read_bytes"]
        # Some threads may each have been about to begin a read. A lead that continued would read up to t20.
        assert 10 * MIB <= read_bytes <= 10 * MIB + held_bytes + 4 * MIB
        assert sums(file, ["t08", "t09", "t10"]) == [8, 9, 10]
        assert until(lambda: slow.gate.counts()["read_bytes"] >= read_bytes + 6 * MIB), "it goes on"


def test_the_gap_between_experts_of_two_layers_delays_nothing(tmp_path):
    """The lead cannot know yet that the program skips the gap. Reading it would delay the requested
    tensors."""
    layers, experts = 3, 64
    content = {
        f"layers.{layer}.experts.{expert:02}": np.full(MIB // 4, layer * experts + expert, "u1")
        for layer in range(layers)
        for expert in range(experts)
    }
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file(content, source / "model.safetensors")
    with (
        slow_mount(source, tmp_path, direct_io=True, delay_ms=2, bandwidth_bytes=50 * MIB) as slow,
        safe_open(slow.path / "model.safetensors", "np") as file,
    ):
        for layer in range(2):
            for expert in range(8, 16):
                name = f"layers.{layer}.experts.{expert:02}"
                np.testing.assert_array_equal(file.get_tensor(name), content[name])
        # All bytes up to the last tensor would be 18 MiB.
        assert slow.gate.counts()["read_bytes"] <= 15 * MIB


@both_mounts
def test_parts_are_read_ahead_past_tensors_that_are_left_out(layers, tmp_path, direct):
    folder, tensors = layers
    names = [f"layers.{layer}.by_rows" for layer in sorted(range(LAYERS), key=str)]
    needed = 0
    with (
        slow_mount(folder, tmp_path, direct_io=direct, gather=8) as slow,
        safe_open(slow.path / "model.safetensors", "np", copy=True) as file,
    ):
        for name in names:
            found = file.get_slice(name)[part_of_rank(name)]
            np.testing.assert_array_equal(found, tensors[name][part_of_rank(name)])
            needed += found.nbytes
    assert slow.counts["most_in_flight"] >= 8
    assert needed <= slow.counts["read_bytes"] <= 1.2 * needed + MIB


def test_leads_of_threads_that_take_a_block_each_do_not_read_those_of_others(source, tmp_path):
    threads = 4
    begun = threading.Barrier(threads)

    def block(number):
        with safe_open(path, "np") as file:
            names = file.keys()[number * TENSORS // threads : (number + 1) * TENSORS // threads]
            for place, name in enumerate(names):
                assert (file.get_tensor(name) == int(name[1:])).all()
                if place == 0:
                    begun.wait()

    with slow_mount(source, tmp_path, direct_io=True, gather=8) as slow:
        path = slow.path / "model.safetensors"
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(block, range(threads)))
    assert slow.counts["most_in_flight"] >= 8
    # Requests in flight are repeated when the next open begins.
    assert WHOLE <= slow.counts["read_bytes"] <= 1.25 * WHOLE


@both_mounts
def test_a_small_file_comes_at_once(tmp_path, direct):
    source = tmp_path / "source"
    source.mkdir()
    tensors = {f"t{number}": np.full(64 * 1024, number, "u1") for number in range(8)}
    safetensors.numpy.save_file(tensors, source / "model.safetensors")
    with slow_mount(source, tmp_path, direct_io=direct, gather=3) as slow:
        for name, found in load_file(slow.path / "model.safetensors").items():
            np.testing.assert_array_equal(found, tensors[name])
    assert slow.counts["most_in_flight"] >= 3
    assert slow.counts["read_bytes"] <= (1.5 if direct else 3) * 8 * 64 * 1024


def test_gaps_between_columns_are_part_of_the_lead(tmp_path):
    """Each thread that reads columns needs 1 MiB for the gaps, and half of the lead is reserved for them."""
    source = tmp_path / "source"
    source.mkdir()
    tensors = {f"t{number:02}": np.full((SIDE, SIDE), number, "u1") for number in range(TENSORS)}
    safetensors.numpy.save_file(tensors, source / "model.safetensors")
    with slow_mount(source, tmp_path, direct_io=True) as slow:
        assert until(lambda: "pagestream-read" not in thread_names()), "those of closed files"
        file = safe_open(slow.path / "model.safetensors", "np", ahead=8 * MIB)
        readers = []
        for number in range(TENSORS):
            assert (file.get_slice(f"t{number:02}")[:, SIDE // 2 :] == number).all()
            readers.append(thread_names().count("pagestream-read"))
        file.close()
    assert 3 <= max(readers) <= 4


@both_mounts
def test_copies_are_read_ahead_and_once(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct, gather=12) as slow:
        one_by_one(slow.path / "model.safetensors", copy=True)
    assert slow.counts["most_in_flight"] >= 12
    assert WHOLE <= slow.counts["read_bytes"] <= 1.05 * WHOLE


@both_mounts
def test_a_file_that_is_opened_for_each_tensor_keeps_its_lead(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct, gather=12) as slow:
        path = slow.path / "model.safetensors"
        for number in range(TENSORS):
            with safe_open(path, "np") as file:
                found = file.get_tensor(f"t{number:02}")
            assert int(found.sum()) == number * MIB
        del found
        assert until(lambda: open_descriptors(path) == 0)
    assert slow.counts["most_in_flight"] >= 12
    # On a busy machine, the idle file may be closed between two opens, which loses its read-ahead. If no lead
    # were kept, each open would read a tensor twice.
    assert WHOLE <= slow.counts["read_bytes"] <= 1.5 * WHOLE


@both_mounts
def test_bytes_read_of_a_closed_file_outlast_its_read_ahead(source, tmp_path, direct):
    """A program may compute before it reopens the file."""
    assert threads_end("pagestream-idle"), "that of an earlier test"
    with slow_mount(source, tmp_path, direct_io=direct, gather=12) as slow:
        path = slow.path / "model.safetensors"
        with safe_open(path, "np", ahead=16 * MIB) as file:
            assert sums(file, file.keys()[:8]) == list(range(8))
        # The thread sleeps until the file has been closed for half a second, and again until it is released.
        assert sleep_ends("pagestream-idle", lambda: open_descriptors(path) == 0)
        assert open_descriptors(path) > 0
        with safe_open(path, "np", ahead=16 * MIB) as file:
            assert sums(file, file.keys()[8:]) == list(range(8, TENSORS))
        assert until(lambda: open_descriptors(path) == 0)
    assert slow.counts["most_in_flight"] >= 12
    assert WHOLE <= slow.counts["read_bytes"] <= 1.05 * WHOLE


def test_a_file_closed_a_while_ago_is_not_read(source, tmp_path):
    assert threads_end("pagestream-idle"), "that of an earlier test"
    with slow_mount(source, tmp_path, direct_io=True, delay_ms=0) as slow:
        path = slow.path / "model.safetensors"
        slow.gate.hold(17 * MIB)
        with safe_open(path, "np") as file:
            assert sums(file, file.keys()[:16]) == list(range(16))
            slow.gate.wait_for(1)
        # The thread sleeps until the file has been closed for half a second, and again until it is released.
        assert sleep_ends("pagestream-idle", lambda: open_descriptors(path) == 0)
        held_bytes = sum(length for _, length in slow.gate.held())
        slow.gate.open()
        assert threads_rest()
        # Some threads may each have been about to begin a read. A lead that continued would read 44 MiB.
        assert 17 * MIB <= slow.gate.counts()["read_bytes"] <= 17 * MIB + held_bytes + 4 * MIB


@both_mounts
def test_writes_do_not_show_in_the_next_open(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct, delay_ms=1) as slow:
        path = slow.path / "model.safetensors"
        for _ in range(3):
            with safe_open(path, "np") as file:
                for name in ("t05", "t06", "t07"):
                    found = file.get_tensor(name)
                    assert (found == int(name[1:])).all()
                    found[:] = 99
        del found


@both_mounts
def test_a_program_that_uses_few_tensors_gets_little_read_ahead(source, tmp_path, direct):
    with (
        slow_mount(source, tmp_path, direct_io=direct) as slow,
        safe_open(slow.path / "model.safetensors", "np") as file,
    ):
        assert sums(file, ["t00", "t01"]) == [0, 1]
        assert threads_rest()
    # The limit covers the tensors in use, the same amount again, and the pages around a fault.
    assert 2 * MIB <= slow.counts["read_bytes"] <= 5 * MIB


def rewritten_tensors(found, get, names, rewrite):
    """Takes two tensors, rewrites the file, takes the others, and appends all values to `found`."""
    found += [np.unique(get(name)).tolist() for name in names[:2]]
    rewrite()
    found += [np.unique(get(name)).tolist() for name in names[2:]]


@pytest.mark.parametrize("way", ["safe_open", "safe_open, copy", "open_checkpoint", "read"])
def test_a_file_that_is_rewritten_under_its_lead_is_an_error(tmp_path, way):
    """The kernel caches attributes for a second. Without a page cache, no tensor is a view."""
    folder = tmp_path / "source"
    folder.mkdir()
    old, new = ({f"t{number:02}": np.full(MIB, byte, "u1") for number in range(48)} for byte in (1, 2))
    target = folder / "model.safetensors"
    safetensors.numpy.save_file(old, target)

    def rewrite():
        with open(target, "r+b") as file:
            file.write(safetensors.numpy.save(new))

    found = []
    with slow_mount(folder, tmp_path, direct_io=True) as slow, contextlib.ExitStack() as ends:
        path = slow.path / "model.safetensors"
        if way.startswith("safe_open"):
            get = ends.enter_context(safe_open(path, "np", copy="copy" in way)).get_tensor
        else:
            weights = ends.enter_context(open_checkpoint(path))
            get = weights.read if way == "read" else weights.__getitem__
        with pytest.raises(FileChangedError, match=r"model\.safetensors"):
            rewritten_tensors(found, get, sorted(old), rewrite)
        # Later tensors raise too: two states of the file never mix.
        for name in sorted(old)[len(found) :]:
            with pytest.raises(FileChangedError, match=r"model\.safetensors"):
                get(name)
    assert found == [[1]] * len(found)


@both_mounts
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_load_file_of_a_file_that_is_rewritten_meanwhile_is_an_error(tmp_path, direct, framework):
    """Views of a cached file show its present content, so the tensors would mix two states."""
    folder = tmp_path / "source"
    folder.mkdir()
    old, new = ({f"t{number:02}": np.full(MIB, byte, "u1") for number in range(48)} for byte in (1, 2))
    target = folder / "model.safetensors"
    safetensors.numpy.save_file(old, target)
    load_file = importlib.import_module(f"pagestream.safetensors.{framework}").load_file
    with (
        slow_mount(folder, tmp_path, direct_io=direct, delay_ms=0) as slow,
        ThreadPoolExecutor(1) as pool,
    ):
        slow.gate.hold(8 * MIB)
        loading = pool.submit(load_file, slow.path / "model.safetensors")
        slow.gate.wait_for(1)
        assert not loading.done()
        with open(target, "r+b") as file_at_server:
            file_at_server.write(safetensors.numpy.save(new))
        slow.gate.open()
        with pytest.raises(FileChangedError, match=r"model\.safetensors"):
            loading.result()
        found = load_file(slow.path / "model.safetensors")
        assert found.keys() == new.keys()
        assert all(np.array_equal(np.asarray(found[name]), new[name]) for name in new)


def test_each_thread_learns_that_a_file_was_rewritten_under_its_lead(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    old, new = ({f"t{number:02}": np.full(MIB, byte, "u1") for number in range(48)} for byte in (1, 2))
    target = folder / "model.safetensors"
    safetensors.numpy.save_file(old, target)
    with (
        slow_mount(folder, tmp_path, direct_io=True, delay_ms=0) as slow,
        ThreadPoolExecutor(4) as pool,
        safe_open(slow.path / "model.safetensors", "np") as file,
    ):
        assert file.get_tensor("t00")[0] == 1

        def taken(name):
            try:
                array = file.get_tensor(name)
            except FileChangedError:
                return "error"
            # A tensor taken out of order is a view, which shows the present content.
            is_view = place_in_file(array, slow.path / "model.safetensors") is not None
            return "view" if is_view else np.unique(array).tolist()

        slow.gate.hold(8 * MIB)
        asked = [pool.submit(taken, name) for name in sorted(old)[1:]]
        slow.gate.wait_for(1)
        with open(target, "r+b") as file_at_server:
            file_at_server.write(safetensors.numpy.save(new))
        slow.gate.open()
        found = [each.result() for each in asked]
    assert "error" in found
    assert [each for each in found if each not in ([1], "error", "view")] == []


@both_mounts
def test_a_released_and_rewritten_file_is_opened_anew(source, tmp_path, direct):
    folder = tmp_path / "source"
    folder.mkdir()
    target = folder / "model.safetensors"
    target.write_bytes((source / "model.safetensors").read_bytes())
    safetensors.numpy.save_file({"t00": np.full(7, 7, "u1")}, folder / "new")
    with slow_mount(folder, tmp_path, direct_io=direct, delay_ms=1, attributes_hold_ms=0) as slow:
        path = slow.path / "model.safetensors"
        with safe_open(path, "np") as file:
            assert file.get_tensor("t00").size == MIB
            assert file.get_tensor("t01").size == MIB
        (folder / "new").rename(target)
        with safe_open(path, "np") as file:
            assert file.get_tensor("t00").tolist() == [7] * 7


# A lead that opens a file on a cached mount drops the pages of earlier faults. A shard read twice would add
# 16 MiB.
SHARDS_ONCE = WHOLE + 3 * 2 * MIB


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(1, 4):
        tensors = {f"layers.{shard}.{number:02}": tensor(shard * 16 + number) for number in range(16)}
        safetensors.numpy.save_file(tensors, folder / f"model-0000{shard}-of-00003.safetensors")
    return folder


def sums(file, names):
    return [int(file.get_tensor(name).sum()) // MIB for name in names]


@contextlib.contextmanager
def slow_shards(folder, tmp_path, **options):
    for path in folder.iterdir():
        with MappedFile(path) as file:
            file.evict()
    with real.slow_fuse(folder, tmp_path / "slow", **{"delay_ms": 20, **options}) as slow:
        yield slow


def test_each_shard_has_a_lead_though_tensors_are_left_out(tmp_path):
    """The program skips one tensor of each shard."""
    source = tmp_path / "source"
    source.mkdir()
    for shard in range(12):
        tensors = {f"layers.{shard:02}.{number:02}": tensor(number) for number in range(17)}
        safetensors.numpy.save_file(tensors, source / f"model-{shard + 1:05}-of-00012.safetensors")
    with slow_shards(source, tmp_path, delay_ms=1) as slow, open_checkpoint(slow.path) as weights:
        for name in weights:
            if name.endswith(".05"):
                continue
            array = weights[name]
            if name.endswith(".12"):
                assert becomes_resident(array), name
                # The lead reads the next tensor without a request.
                assert becomes_resident(weights[f"{name[:-2]}13"]), name
            assert int(array.sum()) == int(name[-2:]) * MIB
        del array


@both_mounts
def test_the_lead_goes_on_to_the_next_shard(shards, tmp_path, direct):
    with slow_shards(shards, tmp_path, direct_io=direct) as slow:
        first, second, third = sorted(slow.path.iterdir())
        with safe_open(first, "np") as file:
            assert sums(file, file.keys()) == list(range(16, 32))
            is_open = lambda: open_descriptors(second) > 0 and "pagestream-next" not in thread_names()  # noqa: E731
            assert until(is_open), "nobody has asked for it"
            with safe_open(second, "np") as following:
                assert sums(following, following.keys()) == list(range(32, 48))
        with safe_open(third, "np") as file:
            assert sums(file, file.keys()) == list(range(48, 64))
        del file, following
        assert until(lambda: not any(map(open_descriptors, (first, second, third))))
    assert WHOLE <= slow.counts["read_bytes"] <= SHARDS_ONCE


def two_shards(folder, tensors):
    """Writes a checkpoint of two shards. The elements of each tensor equal its number."""
    folder.mkdir()
    for shard in (1, 2):
        content = {f"layers.{shard}.{number:02}": tensor(number) for number in range(tensors)}
        safetensors.numpy.save_file(content, folder / f"model-0000{shard}-of-00002.safetensors")


def test_the_lead_enters_the_next_shard_with_half_of_its_length(tmp_path):
    folder = tmp_path / "source"
    two_shards(folder, 16)
    with slow_shards(folder, tmp_path, direct_io=True, delay_ms=1) as slow:
        first, second = sorted(slow.path.iterdir())
        with safe_open(first, "np", ahead=8 * MIB) as file:
            # Four of the tensors are read ahead, although the program does not request them.
            assert sums(file, file.keys()[:11]) == list(range(11))
            assert threads_rest()  # a request before the last one is begun would not extend the lead
            assert sums(file, file.keys()[11:12]) == [11]
            assert until(lambda: open_descriptors(second) > 0)
            assert until(lambda: "pagestream-next" not in thread_names())
            assert threads_rest()
            # The total is the whole first shard, half of the lead's length in the second, and the headers.
            read_bytes = slow.gate.counts()["read_bytes"]
            assert (16 + 3) * MIB <= read_bytes <= (16 + 4) * MIB + 256 * 1024


def test_the_lead_has_much_of_its_length_in_the_next_shard(tmp_path):
    """The whole next shard exceeds a lead's initial length, and arrives before any request for its
    tensors."""
    folder = tmp_path / "source"
    two_shards(folder, 40)
    with (
        slow_shards(folder, tmp_path, direct_io=True, delay_ms=1) as slow,
        safe_open(min(slow.path.iterdir()), "np") as file,
    ):
        assert sums(file, file.keys()) == list(range(40))
        assert until(lambda: slow.gate.counts()["read_bytes"] >= 80 * MIB)


@both_mounts
def test_the_lead_goes_on_to_a_shard_that_is_open_already(shards, tmp_path, direct):
    """The program opens all files before it uses any tensor."""
    with slow_shards(shards, tmp_path, direct_io=direct) as slow:
        files = [safe_open(path, "np") for path in sorted(slow.path.iterdir())]
        for number, file in enumerate(files):
            assert sums(file, file.keys()) == list(range(number * 16 + 16, number * 16 + 32))
            if direct and number < 2:
                assert until(lambda: slow.gate.counts()["read_bytes"] >= (number + 2) * 16 * MIB)  # noqa: B023
        for file in files:
            file.close()
    assert WHOLE <= slow.counts["read_bytes"] <= SHARDS_ONCE


def test_threads_that_share_a_file_take_each_tensor_from_the_lead(tmp_path):
    """A tensor that one thread awaits keeps its room while another thread requests a tensor."""
    tensors = {"a": np.zeros(1, "u1"), "b": np.ones(20 * MIB, "u1"), "c": np.ones(20 * MIB, "u1")}
    source = tmp_path / "source"
    source.mkdir()
    for number in range(8):
        safetensors.numpy.save_file(tensors, source / f"{number}.safetensors")
    with real.slow_fuse(source, tmp_path / "slow", delay_ms=1, direct_io=True) as slow:
        for path in slow.path.glob("*.safetensors"):
            with safe_open(path, "np") as file, ThreadPoolExecutor(2) as pool:
                slices = [file.get_slice(name) for name in tensors]
                arrays = list(pool.map(lambda part: part[...], slices))
                assert [int(array.sum()) for array in arrays] == [0, 20 * MIB, 20 * MIB]
    assert 320 * MIB <= slow.counts["read_bytes"] <= 330 * MIB


@both_mounts
def test_an_unwanted_next_shard_is_released(shards, tmp_path, direct):
    with slow_shards(shards, tmp_path, direct_io=direct) as slow:
        first, second, _ = sorted(slow.path.iterdir())
        with safe_open(first, "np") as file:
            sums(file, file.keys())
            assert until(lambda: open_descriptors(second) >= 1)
        assert until(lambda: open_descriptors(second) == 0)


@both_mounts
def test_the_files_of_a_checkpoint_are_one_lead(shards, tmp_path, direct):
    with slow_shards(shards, tmp_path, direct_io=direct) as slow:
        with open_checkpoint(slow.path) as weights:
            found = [int(array.sum()) // MIB for array in weights.values()]
        assert found == list(range(16, 64))
    assert WHOLE <= slow.counts["read_bytes"] <= SHARDS_ONCE


def test_an_audit_hook_can_keep_the_lead_from_the_next_shard(shards, tmp_path):
    with slow_shards(shards, tmp_path) as slow:
        output = output_of(PROGRAMS / "weights_lead/audit_refuses_the_next_shard.py", slow.path)
    assert output == "refused, and read"


def test_a_device_in_the_place_of_the_next_shard_is_not_opened(shards, tmp_path):
    strace = real.need_tool("strace")
    log = tmp_path / "log"
    with slow_shards(shards, tmp_path) as slow:
        folder = tmp_path / "hostile"
        folder.mkdir()
        first, second = (folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
        first.symlink_to(min(slow.path.iterdir()))
        os.mknod(second, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # the device numbers of /dev/null
        wrapper = (strace, "-f", "-qq", "-o", str(log), "-e", "trace=open,openat,openat2")
        output_of(PROGRAMS / "weights_lead/the_next_shard_is_a_device.py", first, second, wrapper=wrapper)
    assert first.name in log.read_text()
    assert second.name not in log.read_text()


def test_an_interrupt_while_a_hook_looks_at_the_next_shard_leaves_nothing_behind(shards, tmp_path):
    with slow_shards(shards, tmp_path, direct_io=True) as slow:
        output = output_of(PROGRAMS / "weights_lead/audit_interrupts.py", slow.path)
    assert output == "interrupted, and read; open once it is closed: 0"


@both_mounts
def test_a_shard_that_takes_long_to_open_is_read_once(shards, tmp_path, direct):
    """A program that has waited long enough for the lead opens the shard itself."""
    with slow_shards(shards, tmp_path, direct_io=direct) as slow, ThreadPoolExecutor(1) as pool:
        _, second, last = sorted(slow.path.iterdir())
        with safe_open(second, "np") as file:
            first_sum = sums(file, file.keys()[:1])
            slow.gate.hold_openings()
            assert first_sum + sums(file, file.keys()[1:]) == list(range(32, 48))
        slow.gate.wait_for(1)

        def let_both_open():
            slow.gate.wait_for(2)
            slow.gate.open()

        opened = pool.submit(let_both_open)
        with safe_open(last, "np") as file:
            opened.result()
            assert threads_end("pagestream-next")
            assert sums(file, file.keys()) == list(range(48, 64))
    assert 32 * MIB <= slow.counts["read_bytes"] <= 1.1 * 32 * MIB


@both_mounts
def test_a_relative_path_follows_the_current_directory(source, tmp_path, monkeypatch, direct):
    other = tmp_path / "other"
    other.mkdir()
    safetensors.numpy.save_file({"t00": np.full(7, 7, "u1")}, other / "model.safetensors")
    with slow_mount(source, tmp_path, direct_io=direct, delay_ms=1) as slow:
        monkeypatch.chdir(slow.path)
        with safe_open("model.safetensors", "np") as file:
            assert file.get_tensor("t00").size == MIB
            assert file.get_tensor("t01").size == MIB
        monkeypatch.chdir(other)
        with safe_open("model.safetensors", "np") as file:
            assert file.get_tensor("t00").tolist() == [7] * 7


def test_an_old_handle_does_not_take_the_next_shard_from_a_new_one(shards, tmp_path):
    with slow_shards(shards, tmp_path) as slow:
        first, second, _ = sorted(slow.path.iterdir())
        old = safe_open(first, "np")
        assert old.get_tensor("layers.1.00")[0] == 16
        old.close()
        new = safe_open(first, "np")
        assert sums(new, new.keys()[1:]) == list(range(17, 32))
        assert until(lambda: open_descriptors(second) > 0)
        assert until(lambda: waits_of("pagestream-idle"))
        waits = waits_of("pagestream-idle")
        del old
        # The thread wakes up ten times a second, and closes an idle file after half a second.
        assert until(lambda: (waits_of("pagestream-idle") or waits + 12) >= waits + 12)
        assert open_descriptors(second) > 0
        new.close()
        assert until(lambda: open_descriptors(second) == 0)
