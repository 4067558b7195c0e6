"""Weights on their way to a simulated device. Its copies come late, or stop the storage meanwhile."""

import ctypes
import gc
import itertools
import logging
import os
import signal
import threading
import time
import weakref
from contextlib import closing

import numpy as np
import pytest
import safetensors.torch
import torch

from pagestream import open_checkpoint
from pagestream._common import ranks
from pagestream.devices import copy_device, transfer
from pagestream.devices import pinned as pinning
from pagestream.devices.copy_device import CopyDevice
from pagestream.devices.pinned import PinnedMemory
from pagestream.errors import MappedReadError
from pagestream.torch import load_state_dict, stream_checkpoint

from support import real
from support.late_device import LateDevice, StallingDevice, interrupt_first_wait
from support.process import PROGRAMS, output_of, run_python, start_python, thread_names
from support.rest import threads_rest

MIB = 1 << 20


def readers_end():
    """Waits for the threads of streams to end. Returns whether they did."""
    deadline = time.monotonic() + 600
    while "pagestream-read" in thread_names() and time.monotonic() < deadline:
        time.sleep(0.01)
    return "pagestream-read" not in thread_names()


@pytest.fixture
def late(monkeypatch):
    """Sends streams to a device whose copies come late."""
    device = LateDevice(delay=0.005)
    monkeypatch.setattr(copy_device, "staged_for", lambda _: device)
    return device


@pytest.fixture
def direct(monkeypatch):
    """Sends streams to the CPU as if it were a device."""
    monkeypatch.setattr(copy_device, "staged_for", lambda _: CopyDevice(torch.device("cpu")))


@pytest.fixture(scope="module")
def tensors():
    """Returns some tensors larger than a piece, and many small ones. All sizes are multiples of 16 bytes."""
    rng = np.random.default_rng(11)
    sizes = [9 * MIB + 4096, 16, 2 * MIB, *[4000] * 200, 3 * MIB + 16, 800_000, 700_000, 600_000, 7 * MIB]
    return {
        f"t{number:03}": torch.from_numpy(rng.integers(0, 256, size, "u1"))
        for number, size in enumerate(sizes)
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("device") / "model.safetensors"
    safetensors.torch.save_file(tensors, path)
    return path


def left_behind(device):
    """Returns leftovers of a stream: threads, copies in flight, page-locked memory."""
    gc.collect()
    return [] if readers_end() else ["threads"], device._reading, device.registered


NOTHING = ([], [], {})


def same(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(
            found[name].reshape(-1).view(torch.uint8), tensor.contiguous().reshape(-1).view(torch.uint8)
        ), name


# --- bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_bytes", [1, 6 * MIB, None])
def test_staging_is_not_filled_again_before_its_copy_is_done(path, tensors, late, memory_bytes):
    # The consumer never waits for the device.
    found = dict(stream_checkpoint(path, device="cpu", memory_bytes=memory_bytes))
    late.synchronize()
    same(found, tensors)
    assert late.unregistered_while_read == []
    assert left_behind(late) == NOTHING


def test_a_tensor_is_whole_once_the_event_that_it_comes_with_is_done(path, tensors, late):
    handed_over = {}

    def hand_over(parts, done):
        handed_over.update((part.data_ptr(), done) for part in parts)

    late.hand_over = hand_over
    for name, tensor in stream_checkpoint(path, device="cpu", memory_bytes=6 * MIB):
        handed_over[tensor.data_ptr()].synchronize()
        assert torch.equal(tensor, tensors[name])


@pytest.mark.usefixtures("direct")
def test_the_default_device_does_not_matter_to_staging(path, tensors):
    with torch.device("meta"):
        found = dict(stream_checkpoint(path, device="cpu", memory_bytes=6 * MIB))
    same(found, tensors)


def test_staging_has_the_size_that_was_asked_for_and_no_more_than_needed(path, tensors, late, tmp_path):
    sizes = []
    register = late.register
    late.register = lambda address, nbytes: sizes.append(nbytes) or register(address, nbytes)
    for memory_bytes in (1, 5 * MIB, None):
        list(stream_checkpoint(path, device="cpu", memory_bytes=memory_bytes))
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert sizes == [4 * MIB, 5 * MIB, total]
    safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / "small.safetensors")
    list(stream_checkpoint(tmp_path / "small.safetensors", device="cpu"))
    assert sizes[-1] == 4 * MIB


def test_large_tensors_cross_in_pieces_and_small_ones_together(path, tensors, late):
    copies = []
    copy_into = late.copy_into
    late.copy_into = lambda target, array: copies.append(array.nbytes) or copy_into(target, array)
    list(stream_checkpoint(path, device="cpu", memory_bytes=8 * MIB))
    assert max(copies) <= 2 * MIB
    # One copy transfers 200 neighbouring tensors of 4000 bytes.
    assert len(copies) < 25
    assert sum(copies) <= sum(tensor.nbytes for tensor in tensors.values()) + 4096 * len(copies)


@pytest.mark.usefixtures("direct")
def test_every_type_part_and_cast_arrives_as_on_the_cpu(tmp_path):
    torch.manual_seed(0)
    kinds = [
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.complex64,
    ]
    found = {f"{kind}": torch.randn(600, 301).to(kind) for kind in kinds}
    found |= {f"{kind}": torch.randint(0, 99, (33, 7)).to(kind) for kind in (torch.int64, torch.uint16)}
    found |= {"bool": torch.rand(5, 5) > 0.5, "scalar": torch.tensor(3.5), "empty": torch.empty(2, 0, 3)}
    found |= {"empty too": torch.empty(0, dtype=torch.float16), "large": torch.randn(3000, 1000)}
    # Its elements are misaligned for every kernel.
    found["three bytes"] = torch.arange(3, dtype=torch.uint8)
    found["four"] = torch.arange(4, dtype=torch.uint8)
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(found, path)
    parts = {
        "large": np.s_[::3, 100:900],
        "torch.float32": np.s_[:, None, 5],
        "torch.float8_e4m3fn": np.s_[500:2:-2],
        "torch.int64": np.s_[:0],
        "scalar": None,
    }
    for plan, dtype, order in itertools.product((None, parts), (None, torch.float16), ("file", "layer")):
        arguments = {"device": "cpu", "plan": plan, "dtype": dtype, "order": order}
        staged = dict(stream_checkpoint(path, **arguments, memory_bytes=1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(copy_device, "staged_for", lambda _: None)
            same(staged, dict(stream_checkpoint(path, **arguments)))
        assert all(tensor.data_ptr() % 16 == 0 for tensor in staged.values() if tensor.numel())
    same(load_state_dict(path), {name: found[name] for name in open_checkpoint(path)})


@pytest.mark.usefixtures("direct")
def test_parts_that_are_larger_than_staging_are_cut(tmp_path):
    whole = torch.arange(40 * 50 * 2000, dtype=torch.int32).view(40, 50, 2000)
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": whole}, path)
    for index in (np.s_[::-1, ::2], np.s_[3], np.s_[:, 7], np.s_[:, :, 1:1999], np.s_[..., ::-3]):
        [(_, found)] = stream_checkpoint(path, device="cpu", plan={"a": index}, memory_bytes=1)
        assert np.array_equal(found.numpy(), whole.numpy()[index])


@pytest.mark.usefixtures("direct")
def test_an_empty_plan_has_no_tensors(path):
    assert dict(stream_checkpoint(path, device="cpu", plan=[])) == {}


@pytest.mark.usefixtures("late")
def test_a_device_is_not_given_views_of_files(path):
    with pytest.raises(ValueError, match='strategy="mapped" is for the CPU'):
        stream_checkpoint(path, device="cpu", strategy="mapped")


# --- page-locking ----------------------------------------------------------------------------------


def pinned(device, nbytes):
    memory = PinnedMemory(device)
    memory.pin(nbytes)
    return memory


def test_memory_is_page_locked_in_three_steps(monkeypatch, caplog):
    monkeypatch.setattr(pinning, "PIECE_BYTES", 1 * MIB)
    caplog.set_level(logging.INFO, "pagestream.torch")
    device = LateDevice()
    memory = pinned(device, 5 * MIB + 100)
    assert (memory.way, list(device.registered.values())) == ("one registration", [5 * MIB + 100])
    memory.close()

    device.most_registered = MIB
    memory = pinned(device, 5 * MIB + 100)
    assert memory.way == "registrations of 256 MiB"
    start = memory.array.__array_interface__["data"][0]
    assert device.registered == {start + n * MIB: min(MIB, 5 * MIB + 100 - n * MIB) for n in range(6)}
    assert list(memory.spans(MIB - 5, 2 * MIB + 7)) == [
        (MIB - 5, MIB),
        (MIB, 2 * MIB),
        (2 * MIB, 2 * MIB + 7),
    ]
    memory.close()
    assert device.registered == {}

    device.most_registered = 100
    memory = pinned(device, 5 * MIB)
    assert (memory.way, memory.array.nbytes, device.registered) == ("allocated by the runtime", 5 * MIB, {})
    memory.close()
    assert [record.args[2] for record in caplog.records] == [
        "one registration",
        "registrations of 256 MiB",
        "allocated by the runtime",
    ]
    assert "one registration: CUDA error 1; registrations of 256 MiB: CUDA error 1" in caplog.text


def test_memory_of_the_runtime_is_given_back(path, tensors, late):
    late.most_registered = 100
    stream = stream_checkpoint(path, device="cpu")
    found = dict([next(stream)])
    assert late.runtimes() is not None
    found |= dict(stream)
    late.synchronize()
    same(found, tensors)
    assert late.runtimes is None


def test_memory_that_cannot_be_page_locked_serves_with_a_warning(path, tensors, late):
    late.most_registered = 100

    def none_left(_nbytes):
        message = "out of memory"
        raise RuntimeError(message)

    late.allocate_pinned = none_left
    with pytest.warns(
        RuntimeWarning, match="cannot be page-locked .*allocated by the runtime: out of memory"
    ):
        found = dict(stream_checkpoint(path, device="cpu"))
    late.synchronize()
    same(found, tensors)


def test_page_locked_memory_stays_where_it_is_when_the_process_forks():
    """In private memory, a write would move the parent to a new page, and the device would keep the old
    one."""
    memory = pinned(LateDevice(), 4 * MIB)
    address = memory.array.__array_interface__["data"][0]
    child = os.fork()
    if child == 0:
        memory.array[:] = 7
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (memory.array == 7).all()
    assert memory.array.__array_interface__["data"][0] == address
    memory.close()


def test_no_copy_crosses_two_registrations(path, tensors, late, monkeypatch):
    monkeypatch.setattr(pinning, "PIECE_BYTES", 1 * MIB)
    late.most_registered = MIB
    copy_into, crossing = late.copy_into, []

    def checked(target, array):
        first = array.__array_interface__["data"][0]
        holders = [a for a, n in late.registered.items() if a <= first and first + array.nbytes <= a + n]
        crossing.extend([] if holders else [first])
        copy_into(target, array)

    late.copy_into = checked
    found = dict(stream_checkpoint(path, device="cpu", memory_bytes=6 * MIB))
    late.synchronize()
    same(found, tensors)
    assert crossing == []
    assert left_behind(late) == NOTHING


# --- storage that stalls ----------------------------------------------------------------------------


def test_a_device_touches_no_page_that_storage_would_have_to_deliver(tmp_path, tensors, monkeypatch):
    with real.stoppable_bindfs(tmp_path) as (mount, daemon):
        safetensors.torch.save_file(tensors, tmp_path / "behind" / "model.safetensors")
        device = StallingDevice(daemon)
        monkeypatch.setattr(copy_device, "staged_for", lambda _: device)
        found = dict(stream_checkpoint(mount / "model.safetensors", device="cpu", memory_bytes=4 * MIB))
        device.synchronize()
        same(found, tensors)
        assert device.stalled_copies > 20
        assert left_behind(device) == NOTHING


def test_the_stalling_device_hangs_on_a_page_of_a_mapping(tmp_path):
    """This is the failure that the previous test guards against."""
    with real.stoppable_bindfs(tmp_path) as (mount, daemon):
        (tmp_path / "behind" / "cold").write_bytes(bytes(8 * MIB))
        mapped = np.memmap(mount / "cold", np.uint8, "r")
        device, target = StallingDevice(daemon), torch.zeros(4096, dtype=torch.uint8)
        source, done = mapped.ctypes.data + 5 * MIB, threading.Event()

        def copy():
            with device.stalled():
                ctypes.memmove(target.data_ptr(), source, 4096)
            done.set()

        thread = threading.Thread(target=copy)
        thread.start()
        assert not done.wait(0.5)
        daemon.send_signal(signal.SIGCONT)
        thread.join()


# --- ends ------------------------------------------------------------------------------------------


def test_a_stream_that_is_closed_early_leaves_nothing_behind(path, late):
    stream = stream_checkpoint(path, device="cpu", memory_bytes=6 * MIB)
    for _ in range(3):
        next(stream)
    assert late.registered
    stream.close()
    assert left_behind(late) == NOTHING
    assert late.unregistered_while_read == []
    stream = stream_checkpoint(path, device="cpu")
    next(stream)
    del stream
    assert left_behind(late) == NOTHING
    stream_checkpoint(path, device="cpu").close()
    assert left_behind(late) == NOTHING


def test_an_exception_of_the_consumer_leaves_nothing_behind(path, late):
    def use():
        for number, _ in enumerate(stream_checkpoint(path, device="cpu")):
            if number == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()
    assert left_behind(late) == NOTHING


def test_a_copy_that_fails_leaves_nothing_behind(path, late):
    calls = itertools.count()

    def sometimes():
        if next(calls) == 3:
            message = "CUDA out of memory"
            raise RuntimeError(message)

    late.fail_copy = sometimes
    with pytest.raises(RuntimeError, match="out of memory"):
        list(stream_checkpoint(path, device="cpu", memory_bytes=6 * MIB))
    assert left_behind(late) == NOTHING
    assert late.unregistered_while_read == []


def test_an_interrupt_while_copies_are_waited_for_leaves_no_registration(path, late):
    stream = stream_checkpoint(path, device="cpu", memory_bytes=6 * MIB)
    next(stream)

    def interrupt():
        raise KeyboardInterrupt

    late.fail_synchronize = interrupt
    with pytest.raises(KeyboardInterrupt):
        stream.close()
    assert left_behind(late) == NOTHING


def staging(device):
    """Returns the page-locked memory of a stream."""
    if not device.registered:
        return device.runtimes()
    [(address, nbytes)] = device.registered.items()
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


@pytest.mark.parametrize("most_registered", [None, 100])
def test_an_interrupt_before_copies_are_waited_for_frees_no_memory(path, late, most_registered):
    """A second Ctrl-C may do this. The memory is registered, or allocated by the runtime."""
    late.most_registered = most_registered
    stream = stream_checkpoint(path, device="cpu", memory_bytes=6 * MIB)
    next(stream)
    interrupt_first_wait(late)
    # This copy reads the staging memory, which is still filled. The stream may wait only for its own copies.
    late.copy_into(torch.zeros(4096, dtype=torch.uint8), staging(late)[:4096])
    with pytest.raises(KeyboardInterrupt):
        stream.close()
    assert left_behind(late) == NOTHING
    assert late.unregistered_while_read == []
    assert late.runtimes is None


def test_memory_stays_where_copies_cannot_be_waited_for(monkeypatch):
    device = LateDevice()
    memory = pinned(device, 4 * MIB)
    with monkeypatch.context() as patch:
        patch.setattr(device, "synchronize", lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            memory.close()
    assert list(device.registered.values()) == [memory.array.nbytes] == [4 * MIB]
    memory.close()
    assert (device.registered, memory.array.nbytes) == ({}, 0)


def test_memory_that_was_not_closed_stays():
    """An exception may occur before `close` is called."""
    device = LateDevice()
    memory = pinned(device, 4 * MIB)
    array, kept = weakref.ref(memory.array), weakref.ref(memory)
    del memory
    gc.collect()
    assert array().nbytes == 4 * MIB
    kept().close()
    gc.collect()
    assert array() is kept() is None


def test_a_failure_of_storage_comes_after_what_has_arrived(tmp_path, late):
    source = tmp_path / "source"
    source.mkdir()
    tensors = {f"t{n:02}": torch.full((MIB,), n, dtype=torch.uint8) for n in range(32)}
    safetensors.torch.save_file(tensors, source / "m.safetensors")
    failing = real.slow_fuse(source, tmp_path / "slow", direct_io=True, fail_range=(20 * MIB, 21 * MIB))
    found = {}
    with failing as slow:
        stream = stream_checkpoint(slow.path / "m.safetensors", device="cpu", memory_bytes=4 * MIB)
        with pytest.raises(MappedReadError) as caught:
            found.update(stream)
        assert caught.value.filename == str(slow.path / "m.safetensors")
        assert left_behind(late) == NOTHING
        del caught, stream
        gc.collect()
    same(found, {name: tensors[name] for name in found})


def test_many_requests_are_in_flight_and_staging_bounds_them(tmp_path, late):
    source = tmp_path / "source"
    source.mkdir()
    tensors = {f"t{number:02}": torch.full((MIB,), number, dtype=torch.uint8) for number in range(64)}
    safetensors.torch.save_file(tensors, source / "model.safetensors")
    with real.slow_fuse(source, tmp_path / "slow", direct_io=True, gather=24) as slow:
        found = dict(stream_checkpoint(slow.path / "model.safetensors", device="cpu"))
        late.synchronize()
        same(found, tensors)
    assert slow.counts["most_in_flight"] >= 24
    assert slow.counts["read_bytes"] <= 1.02 * 64 * MIB
    with real.slow_fuse(source, tmp_path / "again", direct_io=True) as slow:
        stream = stream_checkpoint(slow.path / "model.safetensors", device="cpu", memory_bytes=6 * MIB)
        with closing(stream):
            assert next(stream)[0] == "t00"
            assert threads_rest()
        del stream
        gc.collect()
    # The limit covers the staging memory, the first tensor once more, and the header.
    assert slow.counts["read_bytes"] <= 8 * MIB


def test_readers_are_this_processs_share_of_the_processors(monkeypatch):
    for processors, processes, threads in ((2, 1, 4), (12, 1, 12), (64, 1, 16), (64, 8, 8), (8, 8, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=processors: set(range(count)))
        monkeypatch.setattr(ranks, "local_processes", lambda count=processes: count)
        assert transfer.first_threads() == threads


def test_a_child_of_a_fork_is_told_and_the_parent_goes_on(path):
    assert output_of(PROGRAMS / "torch_weights" / "forked.py", path, with_torch=True) == "told\nsame"


def test_a_program_may_end_with_a_stream_open(path, tensors):
    done = run_python(PROGRAMS / "torch_weights" / "left_open.py", path, with_torch=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{next(iter(tensors))}\n", "")


def test_the_exit_of_a_program_ends_a_stream_that_is_open(path, tensors):
    done = run_python(PROGRAMS / "torch_weights" / "left_to_the_exit.py", path, with_torch=True)
    lines = f"{next(iter(tensors))}\n0 registered, 0 under way\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, lines, "")


def test_ctrl_c_works_while_a_read_hangs(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    safetensors.torch.save_file({"t": torch.ones(8 * MIB, dtype=torch.uint8)}, source / "m.safetensors")
    with real.slow_fuse(source, tmp_path / "slow", direct_io=True) as slow:
        slow.gate.hold(4096)
        program = PROGRAMS / "torch_weights" / "interrupted.py"
        with start_python(program, slow.path / "m.safetensors", with_torch=True) as process:
            slow.gate.wait_for(1)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "heard; 0 registered\n"
            slow.gate.open()
