"""`Checkpoint.warm`: tensors are read before any request for them, and each byte once."""

import contextlib
import errno
import json
import os
import random
import re
import threading
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from pagestream import MappedFile, open_checkpoint
from pagestream.errors import FileChangedError, MappedReadError
from pagestream.weights.warming import Warming

from support import real
from support.control_groups import memory_limit
from support.page_cache import seen_once
from support.process import (
    PROGRAMS,
    output_of,
    start_python,
    thread_names,
    threads,
    threads_end,
    until,
)
from support.weight_files import entry, weight_file, write

pytestmark = pytest.mark.slow

MIB = 1 << 20
TENSORS = 48
WHOLE = TENSORS * MIB
# Room for the whole file.
AMPLE = 2 * WHOLE
# Room for eight tensors, whose memory is page-aligned.
LITTLE = 8 * (MIB + 4096)

both_mounts = pytest.mark.parametrize("direct", [False, True], ids=["cached", "direct_io"])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Returns a file whose data follow the order of the names."""
    folder = tmp_path_factory.mktemp("warm")
    tensors = {f"t{number:02}": np.full((1024, 1024), number, "u1") for number in range(TENSORS)}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


def evict(folder):
    for path in folder.iterdir():
        with MappedFile(path) as file:
            file.evict()


@contextlib.contextmanager
def slow_mount(source, tmp_path, **options):
    evict(source)
    with real.slow_fuse(source, tmp_path / "slow", **{"delay_ms": 10, **options}) as slow:
        yield slow


@contextlib.contextmanager
def slow_weights(source, tmp_path, *, ahead=None, mmap_mode=None, **options):
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(slow_mount(source, tmp_path, **options))
        path = slow.path / "model.safetensors"
        yield slow, stack.enter_context(open_checkpoint(path, ahead=ahead, mmap_mode=mmap_mode))


def is_right(name, array):
    """Returns whether every element is right, which reads them all."""
    return array.min() == array.max() == int(name[1:])


def one_by_one(weights, names):
    return all(is_right(name, weights[name]) for name in names)


def in_order(weights):
    assert one_by_one(weights, weights)


def to_and_fro(weights):
    names = list(weights)
    assert one_by_one(weights, [*names[::-2], *names[::2]])


def by_read(weights):
    assert all(is_right(name, weights.read(name)) for name in weights)


def by_read_into(weights):
    out = np.empty((1024, 1024), "u1")
    assert all(is_right(name, weights.read(name, out=out)) for name in weights)


def by_stream(weights):
    seen = {name: array for name, array in weights.stream() if is_right(name, array)}
    assert list(seen) == list(weights)


def by_stream_backwards(weights):
    names = list(weights)[::-1]
    seen = [name for name, array in weights.stream(names, order="plan") if is_right(name, array)]
    assert seen == names


def by_several_threads(weights):
    wrong = []

    def use(names):
        wrong.extend(name for name in names if not is_right(name, weights[name]))

    names = list(weights)
    threads = [threading.Thread(target=use, args=(names[first::3],)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


USES = {
    use.__name__: use
    for use in (
        in_order,
        to_and_fro,
        by_read,
        by_read_into,
        by_stream,
        by_stream_backwards,
        by_several_threads,
    )
}
every_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@both_mounts
@every_use
def test_bytes_read_once_are_not_read_again(source, tmp_path, use, direct):
    with slow_weights(source, tmp_path, direct_io=direct, gather=10) as (slow, weights):
        warming = weights.warm(memory_bytes=AMPLE)
        assert warming.wait()
        assert warming.fraction == 1.0
        assert 0.99 * WHOLE <= warming.bytes_read <= WHOLE  # neighbouring tensors share pages
        use(weights)
    assert slow.counts["most_in_flight"] >= 10
    assert WHOLE <= slow.counts["read_bytes"] <= 1.02 * WHOLE


@both_mounts
@every_use
def test_bytes_in_flight_are_not_read_twice(source, tmp_path, use, direct):
    with slow_weights(source, tmp_path, direct_io=direct, gather=10) as (slow, weights):
        weights.warm(memory_bytes=AMPLE)
        use(weights)
    assert slow.counts["most_in_flight"] >= 10
    # If a page fault and a reader request the same pages, the kernel may read ahead for both of them.
    assert WHOLE <= slow.counts["read_bytes"] <= (1.02 if direct else 1.1) * WHOLE


@both_mounts
def test_the_variable_limits_the_threads_of_a_lead(source, tmp_path, monkeypatch, direct):
    monkeypatch.setenv("PAGESTREAM_THREADS", "3")

    # A warming without work has one thread, which ends at once.
    kinds = ("pagestream-warm", "pagestream-read")

    with slow_weights(source, tmp_path, direct_io=direct, delay_ms=0) as (slow, weights):
        assert until(lambda: not {*kinds} & {*thread_names()}), "those of an earlier test"
        slow.gate.hold(64 << 10)
        warming = weights.warm(memory_bytes=AMPLE)
        seen, most, stayed = deque(maxlen=5), 0, 0
        slow.gate.wait_for(3)
        while not warming.wait(timeout=0):
            slow.gate.release(1)
            seen.append(threads())
            for kind in kinds:
                numbers = [{number for number, name in each.items() if name == kind} for each in seen]
                most = max(most, len(numbers[-1]))
                stayed = max(stayed, len(set.intersection(*numbers)) if len(seen) == seen.maxlen else 0)
        # A finished thread stays visible for a moment, next to its successor.
        assert most >= 3 >= stayed > 0


@every_use
def test_a_lead_with_little_memory_goes_on_as_tensors_are_taken(source, tmp_path, use):
    with slow_weights(source, tmp_path, direct_io=True) as (slow, weights):
        warming = weights.warm(memory_bytes=LITTLE)
        assert warming.wait()
        assert warming.bytes_read == 8 * MIB
        assert repr(warming) == f"<Warming {8 * MIB:,} of {WHOLE:,} bytes, full>"
        use(weights)
        assert warming.wait()
    assert WHOLE <= slow.counts["read_bytes"] <= 1.02 * WHOLE


@pytest.mark.parametrize("mode", ["private", "read"])
def test_files_that_are_not_shared_are_read_into_memory(source, tmp_path, mode):
    with slow_weights(source, tmp_path, mmap_mode=mode) as (slow, weights):
        warming = weights.warm(memory_bytes=LITTLE)
        assert warming.wait()
        assert warming.bytes_read == 8 * MIB
        in_order(weights)
        assert warming.wait()
        assert warming.fraction == 1.0
    assert WHOLE <= slow.counts["read_bytes"] <= 1.02 * WHOLE


def test_small_tensors_in_any_order_and_twice(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    tensors = {f"t{number}": np.full(8192, number % 256, "u1") for number in range(1024)}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    names = [*tensors, *list(tensors)[::7]]
    random.Random(8).shuffle(names)
    with slow_weights(folder, tmp_path, direct_io=True, delay_ms=1, ahead=False) as (slow, weights):
        warming = weights.warm(memory_bytes=2 * MIB)
        assert warming.wait()
        for name in names:
            np.testing.assert_array_equal(weights[name], tensors[name])
        assert warming.wait()
        assert repr(warming) == f"<Warming {8 * MIB:,} of {8 * MIB:,} bytes, done>"
    assert slow.counts["read_bytes"] > 8 * MIB  # page faults read them for the second use


def test_small_neighbours_share_memory_and_each_is_taken_once(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    safetensors.numpy.save_file(
        {"a": np.full(4096, 1, "u1"), "b": np.full(4096, 2, "u1")}, folder / "model.safetensors"
    )
    with slow_weights(folder, tmp_path, direct_io=True, delay_ms=1) as (_, weights):
        assert weights.warm().wait()
        first, second, neighbour = weights["a"], weights["a"], weights["b"]
        assert not np.shares_memory(first, second)
        assert (first == second).all()
        assert neighbour.ctypes.data == first.ctypes.data + 4096


def test_a_lead_into_the_page_cache_needs_no_other_one(source, tmp_path, monkeypatch):
    # With many threads, many earlier requests would precede the urgent tensor.
    monkeypatch.setenv("PAGESTREAM_THREADS", "4")
    with slow_weights(source, tmp_path, delay_ms=0) as (slow, weights):
        slow.gate.hold(6 * MIB, 46 * MIB)
        warming = weights.warm(memory_bytes=AMPLE)
        assert one_by_one(weights, ["t00", "t01", "t02", "t03"])
        assert warming.wait(0) is False
        assert "pagestream-lead" not in thread_names()
        assert is_right("t47", weights["t47"])  # this tensor is read next
        assert warming.wait(0) is False
        slow.gate.open()


def test_each_file_goes_where_its_reads_come_from(source, tmp_path):
    others = tmp_path / "others"
    others.mkdir()
    tensors = {f"u{number:02}": np.full(MIB, number, "u1") for number in range(TENSORS)}
    safetensors.numpy.save_file(tensors, others / "others.safetensors")
    evict(others)
    direct = real.slow_fuse(others, tmp_path / "direct", delay_ms=10, direct_io=True)
    with slow_mount(source, tmp_path) as cached, direct as past:
        paths = [cached.path / "model.safetensors", past.path / "others.safetensors"]
        with open_checkpoint(paths) as weights:
            warming = weights.warm(memory_bytes=AMPLE)
            assert warming.wait()
            assert warming.fraction == 1.0
            assert not weights["t05"].flags.owndata
            by_stream(weights)
    assert WHOLE <= cached.counts["read_bytes"] <= 1.02 * WHOLE
    assert WHOLE <= past.counts["read_bytes"] <= 1.02 * WHOLE


def test_a_lead_in_memory_needs_little_more_than_its_limit(source, tmp_path):
    with slow_mount(source, tmp_path, direct_io=True, delay_ms=1) as slow:
        path = slow.path / "model.safetensors"
        most_kib = int(output_of(PROGRAMS / "weights_warm" / "memory.py", path, LITTLE))
    # The limit covers the warming, the tensor in use, the next tensor, and small allocations.
    assert 7 * MIB <= most_kib * 1024 <= (8 + 2 + 6) * MIB


@pytest.mark.parametrize("plan", ["names", "parts", "function"])
@both_mounts
def test_a_plan_is_read_and_nothing_else(source, tmp_path, plan, direct):
    chosen = [f"t{number:02}" for number in range(5, 15)]
    rows = np.s_[256:512]
    plans = {
        "names": chosen,
        "parts": dict.fromkeys(chosen, rows),
        "function": lambda info: rows if info.name in chosen else False,
    }
    needed = 10 * MIB if plan == "names" else 10 * MIB // 4
    with slow_weights(source, tmp_path, direct_io=direct) as (slow, weights):
        warming = weights.warm(plans[plan], memory_bytes=AMPLE)
        assert warming.wait()
        assert warming.fraction == 1.0
        assert 0.99 * needed <= warming.bytes_read <= needed  # neighbouring tensors share pages
        for name in chosen[:5]:
            assert is_right(name, weights[name] if plan == "names" else weights.read(name, rows))
        rest = chosen[5:] if plan == "names" else dict.fromkeys(chosen[5:], rows)
        assert all(is_right(name, array) for name, array in weights.stream(rest))
    # The limit covers the header, page ends, and on the cached mount the pages that `stream` samples.
    assert needed <= slow.counts["read_bytes"] <= 1.1 * needed + MIB


def test_columns_are_read_ahead(source, tmp_path):
    with slow_weights(source, tmp_path, direct_io=True, delay_ms=1) as (slow, weights):
        plan = dict.fromkeys(list(weights)[:4], np.s_[:, 512:])
        assert weights.warm(plan).wait()
        for name, part in plan.items():
            assert is_right(name, weights.read(name, part))
    # The gaps of 512 bytes are read too.
    assert slow.counts["read_bytes"] <= 4 * MIB + 65536


def test_gaps_between_columns_are_part_of_the_limit(source, tmp_path):
    """Each thread that reads columns needs 1 MiB for the gaps, and half of the limit is reserved for them."""
    with slow_weights(source, tmp_path, direct_io=True) as (slow, weights):
        plan = dict.fromkeys(weights, np.s_[:, 512:])
        weights.warm(plan, memory_bytes=8 * MIB)
        for name, part in plan.items():
            assert is_right(name, weights.read(name, part))
    assert slow.counts["most_in_flight"] <= 5  # one of these is for the awaited tensor


@both_mounts
def test_a_tensor_outside_of_the_plan_leaves_the_lead_alone(source, tmp_path, direct):
    with slow_weights(source, tmp_path, direct_io=direct) as (slow, weights):
        names = list(weights)
        warming = weights.warm(names[:24], memory_bytes=AMPLE)
        assert one_by_one(weights, names[40:])
        assert warming.wait()
        assert warming.fraction == 1.0
        assert one_by_one(weights, names)
    # On the cached mount, no page that was read is dropped. On the other mount, eight tensors are used twice.
    twice = 8 * MIB if direct else 0
    assert slow.counts["read_bytes"] <= 1.06 * WHOLE + twice


def test_a_tensor_outside_of_the_plan_drops_nothing_from_the_page_cache(source, tmp_path):
    with slow_weights(source, tmp_path) as (slow, weights):
        names = list(weights)
        assert weights.warm(names[:24]).wait()
        assert one_by_one(weights, names[40:])
        assert one_by_one(weights, names[:24])
    assert slow.counts["read_bytes"] <= (24 + 8 + 4) * MIB


def test_a_stream_goes_the_way_of_the_lead(source, tmp_path):
    with slow_weights(source, tmp_path, threads=2) as (slow, weights):
        assert 'takes "pread"' in weights.explain()
        weights.warm(memory_bytes=AMPLE)
        assert re.search(r'takes "ahead": .* where warm\(\) reads as well', weights.explain())
        assert not any(array.flags.writeable for _, array in weights.stream())
    # `explain` times a few requests.
    assert slow.counts["read_bytes"] <= 1.04 * WHOLE + 6 * MIB


def test_a_tensor_that_was_taken_is_read_through_its_file_the_next_time(source, tmp_path):
    with slow_weights(source, tmp_path, direct_io=True, ahead=False) as (slow, weights):
        warming = weights.warm(["t03", "t04"])
        assert warming.wait()
        for _ in range(3):
            assert is_right("t03", weights["t03"])
        assert is_right("t04", weights["t04"])
    assert slow.counts["read_bytes"] <= 2 * MIB + MIB + MIB


def test_other_parts_than_those_of_the_plan_come_from_the_file(source, tmp_path):
    with slow_weights(source, tmp_path, direct_io=True, delay_ms=1) as (_, weights):
        rows = np.s_[:256]
        warming = weights.warm({"t03": rows, "t04": None})
        assert warming.wait()
        assert weights["t03"].shape == (1024, 1024)
        assert is_right("t03", weights["t03"])
        assert weights.read("t04", rows).shape == (256, 1024)
        assert is_right("t04", weights.read("t04", rows))
        assert dict(weights.stream({"t03": np.s_[256:]}))["t03"].shape == (768, 1024)
        assert warming.wait()


def test_misaligned_tensors_come_from_memory(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    floats = np.arange(MIB // 4, dtype="<f4")
    header = {"byte": entry("U8", [1], 0, 1), "floats": entry("F32", [MIB // 4], 1, MIB + 1)}
    text = json.dumps(header)
    text += " " * (-len(text) % 8)
    write(folder / "model.safetensors", weight_file(text, b"7" + floats.tobytes()))
    with slow_weights(folder, tmp_path, direct_io=True) as (slow, weights):
        assert weights.warm().wait()
        found = weights["floats"]
        np.testing.assert_array_equal(found, floats)
        assert found.flags.aligned
    assert MIB <= slow.counts["read_bytes"] <= 1.1 * MIB


def test_pages_of_a_local_file_are_there_for_others(source):
    evict(source)
    path = source / "model.safetensors"
    with open_checkpoint(path) as weights, MappedFile(path) as file:

        def loads_its_tensors():
            warming = weights.warm(list(weights)[:40])
            assert warming.wait()
            assert (warming.fraction, repr(warming)) == (
                1.0,
                f"<Warming {40 * MIB:,} of {40 * MIB:,} bytes, done>",
            )
            return file.residency(4096, 40 * MIB - 4096).fraction == 1.0

        assert seen_once(loads_its_tensors)
        assert file.residency(44 * MIB, 4 * MIB).fraction == 0.0
        again = weights.warm()
        assert again.wait()
        assert again.fraction == 1.0
        # Meanwhile the kernel may have dropped pages of the first forty tensors, but not a tenth of them.
        assert 8 * MIB - 8192 <= again.bytes_read <= 12 * MIB
        assert not next(weights.stream(["t05"]))[1].flags.owndata


def test_the_page_cache_is_filled_up_to_the_limit(source):
    evict(source)
    with open_checkpoint(source / "model.safetensors") as weights:
        warming = weights.warm(memory_bytes=8 * MIB)
        assert warming.wait()
        assert 7 * MIB <= warming.bytes_read <= 8 * MIB
        assert repr(warming).endswith(", full>")
        in_order(weights)


def test_a_control_group_keeps_what_was_read(source):
    evict(source)
    program, path = PROGRAMS / "weights_warm" / "limited.py", source / "model.safetensors"
    with memory_limit(80 * MIB) as start:
        read, resident, handle = output_of(program, path, wrapper=start).split(maxsplit=2)
    # The warming takes half of the free memory within the limit.
    assert 8 * MIB <= int(read) <= 40 * MIB
    assert int(resident) >= 0.95 * int(read)
    assert handle.endswith(", full>")


@both_mounts
def test_cancelling_stops_the_lead_and_keeps_what_was_read(source, tmp_path, monkeypatch, direct):
    # All eight threads wait at the gate, so no thread is free to begin another tensor.
    monkeypatch.setenv("PAGESTREAM_THREADS", "8")
    with slow_weights(source, tmp_path, direct_io=direct, delay_ms=0) as (slow, weights):
        slow.gate.hold(4 * MIB)
        with weights.warm(memory_bytes=AMPLE) as warming:
            assert is_right("t00", weights["t00"])
            slow.gate.wait_for(1)
        slow.gate.open()
        assert warming.wait()
        assert repr(warming).endswith(", cancelled>")
        assert 0 < warming.fraction < 1
        in_order(weights)
    assert WHOLE <= slow.counts["read_bytes"] <= 1.75 * WHOLE


@both_mounts
def test_closing_ends_the_lead(source, tmp_path, monkeypatch, direct):
    monkeypatch.setenv("PAGESTREAM_THREADS", "8")
    with slow_weights(source, tmp_path, direct_io=direct, delay_ms=0) as (slow, weights):
        slow.gate.hold(4 * MIB)
        warming = weights.warm()
        slow.gate.wait_for(1)
        weights.close()
        slow.gate.open()
        assert warming.wait()
        assert repr(warming).endswith(", cancelled>")
        assert threads_end("pagestream-read")
        assert threads_end("pagestream-warm")
    assert slow.counts["read_bytes"] < WHOLE


def test_a_handle_keeps_its_checkpoint_open(source):
    warming = open_checkpoint(source / "model.safetensors").warm()
    assert isinstance(warming, Warming)
    assert warming.wait()
    assert warming.fraction == 1.0


@both_mounts
def test_a_second_lead_takes_the_place_of_the_first(source, tmp_path, monkeypatch, direct):
    monkeypatch.setenv("PAGESTREAM_THREADS", "8")
    with slow_weights(source, tmp_path, direct_io=direct, delay_ms=0) as (slow, weights):
        slow.gate.hold(4 * MIB)
        first = weights.warm()
        slow.gate.wait_for(1)
        second = weights.warm(["t47"])
        slow.gate.open()
        assert repr(first).endswith(", cancelled>")
        assert second.wait()
        assert second.fraction == 1.0
        assert is_right("t47", weights["t47"])
    assert slow.counts["read_bytes"] < WHOLE


@both_mounts
def test_a_failure_is_raised_by_each_wait_and_by_the_tensor(source, tmp_path, direct):
    failing = (20 * MIB + 8192, 20 * MIB + 12288)
    with slow_weights(source, tmp_path, direct_io=direct, fail_range=failing) as (slow, weights):
        warming = weights.warm(memory_bytes=AMPLE)
        for _ in range(2):
            with pytest.raises(MappedReadError) as caught:
                warming.wait()
            assert caught.value.errno == errno.EIO
            assert caught.value.filename == str(slow.path / "model.safetensors")
            assert 19 * MIB <= caught.value.offset <= 21 * MIB
        assert repr(warming).endswith(", failed>")
        assert warming.fraction < 1
        assert one_by_one(weights, [f"t{number:02}" for number in range(19)])
        with pytest.raises(MappedReadError):
            weights.read("t20")
        with pytest.raises(MappedReadError):
            list(weights.stream(["t20"]))


def test_a_failure_that_a_consumer_meets_is_raised_by_wait(source, tmp_path):
    failing = (20 * MIB + 8192, 20 * MIB + 12288)
    with slow_weights(source, tmp_path, direct_io=True, fail_range=failing, threads=4) as (_, weights):
        warming = weights.warm(memory_bytes=AMPLE)
        with pytest.raises(MappedReadError):
            weights.read("t20")
        for _ in range(2):
            with pytest.raises(MappedReadError):
                warming.wait()


def test_a_file_that_was_cut_is_named_with_its_offset(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({f"t{number}": np.full(MIB, number, "u1") for number in range(8)}, path)
    with open_checkpoint(path) as weights:
        os.truncate(path, 3 * MIB)
        evict(tmp_path)
        with pytest.raises(MappedReadError, match="truncated") as caught:
            weights.warm().wait()
        assert caught.value.filename == str(path)


@pytest.mark.parametrize("mode", ["shared", "read"])
def test_a_file_that_was_rewritten_is_an_error(tmp_path, mode):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"t": np.ones(MIB, "u1")}, path)
    with open_checkpoint(path, mmap_mode=mode) as weights:
        with open(path, "r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(b"changed!")
        with pytest.raises(FileChangedError):
            weights.warm().wait()


def test_a_stream_reads_what_a_cancelled_lead_did_not(source, tmp_path):
    with slow_weights(source, tmp_path, direct_io=True, delay_ms=0) as (slow, weights):
        slow.gate.hold(64 << 10)
        warming = weights.warm(memory_bytes=LITTLE)
        # The first tensor takes no request: it arrives while the warming has only begun to read.
        plan = {"t47": np.s_[:0], **dict.fromkeys(list(weights)[:40])}
        stream = weights.stream(plan, order="plan", strategy="pread")
        assert next(stream)[1].size == 0
        warming.cancel()
        slow.gate.open()
        assert sum(is_right(name, array) for name, array in stream) == 40


def test_a_stream_that_is_left_leaves_the_rest_to_others(source, tmp_path):
    with slow_weights(source, tmp_path, direct_io=True) as (slow, weights):
        assert weights.warm(memory_bytes=AMPLE).wait()
        stream = weights.stream()
        assert is_right(*next(stream))
        stream.close()
        assert one_by_one(weights, list(weights)[1:])
    assert slow.counts["read_bytes"] <= 1.02 * WHOLE


@both_mounts
def test_a_child_of_a_fork_reads_by_itself(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct, delay_ms=1) as slow:
        path = slow.path / "model.safetensors"
        found = output_of(PROGRAMS / "weights_warm" / "forked.py", path)
        # The parent has already used the first tensor.
        assert found == f"told\n{TENSORS} {TENSORS}\n{TENSORS} True"


@both_mounts
def test_ctrl_c_works_while_reads_hang(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct, delay_ms=0) as slow:
        slow.gate.hold(4 * MIB)
        program = PROGRAMS / "weights_warm" / "interrupted.py"
        with start_python(program, slow.path / "model.safetensors") as process:
            slow.gate.wait_for(1)
            process.stdin.write("\n")
            process.stdin.flush()
            found = process.stdout.readline().strip()
            slow.gate.open()
        assert process.returncode == 0
        assert re.fullmatch(r"heard, \d+ bytes read", found)
        assert int(found.split()[1]) < WHOLE


@both_mounts
def test_a_program_may_end_in_the_middle(source, tmp_path, direct):
    with slow_mount(source, tmp_path, direct_io=direct, delay_ms=0) as slow:
        slow.gate.hold(4 * MIB)
        program = PROGRAMS / "weights_warm" / "left.py"
        with start_python(program, slow.path / "model.safetensors") as process:
            assert process.stdout.readline() == "True\n"
            # The process exists until its reads are answered.
            assert until(lambda: has_left(process))
            slow.gate.open()
        assert process.returncode == 0
    assert slow.counts["read_bytes"] < WHOLE


def has_left(process):
    """Returns whether the first thread of a process has ended."""
    return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_waiting_ends_with_its_timeout(source, tmp_path):
    with slow_weights(source, tmp_path, direct_io=True, delay_ms=0) as (slow, weights):
        slow.gate.hold(4 * MIB)
        warming = weights.warm()
        assert warming.wait(0) is False
        assert warming.wait(0.01) is False
        assert repr(warming).endswith(", reading>")
        slow.gate.open()
        with pytest.raises(ValueError, match="timeout must be seconds, at least 0, or None"):
            warming.wait(-1)


def test_an_empty_plan_is_done(source):
    with open_checkpoint(source / "model.safetensors") as weights:
        warming = weights.warm([])
        assert warming.wait()
        assert (warming.fraction, warming.bytes_read) == (1.0, 0)
        assert repr(warming) == "<Warming 0 of 0 bytes, done>"


def test_bad_plans_are_refused_before_anything_is_read(source, tmp_path):
    with slow_weights(source, tmp_path, direct_io=True) as (slow, weights):
        with pytest.raises(KeyError, match="nothing"):
            weights.warm(["t00", "nothing"])
        with pytest.raises(IndexError, match="out of bounds"):
            weights.warm({"t00": 5000})
        with pytest.raises(TypeError, match="plan must be names, not one"):
            weights.warm("t00")
        with pytest.raises(ValueError, match="plan has 't00' twice"):
            weights.warm(["t00", "t00"])
        with pytest.raises(ValueError, match="memory_bytes must be at least 1"):
            weights.warm(memory_bytes=0)
        weights.close()
        with pytest.raises(ValueError, match="closed"):
            weights.warm()
        assert {"pagestream-read", "pagestream-warm"}.isdisjoint(thread_names())
    assert slow.counts["read_bytes"] <= 65536
