"""Tensors read into caller-provided memory. Each part of this memory is reused once it is given back."""

import os

import numpy as np
import pytest
import safetensors.numpy

from pagestream import StagingBuffer, _native, open_checkpoint
from pagestream.errors import MappedReadError
from pagestream.weights.checkpoint import native_files
from pagestream.weights.indexing import ByteSelection

from support import real
from support.rest import threads_rest

MIB = 1 << 20
SIZES = [100, 3, 5 * MIB, 700_001, 1, 2 * MIB, 3 * MIB + 5, *[4000] * 300, 6 * MIB]


@pytest.fixture(scope="module")
def tensors():
    rng = np.random.default_rng(3)
    return {f"t{number:03}": rng.integers(0, 256, size, "u1") for number, size in enumerate(SIZES)}


@pytest.fixture(scope="module")
def weights(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("staged") / "model.safetensors"
    safetensors.numpy.save_file(tensors, path)
    with open_checkpoint(path) as opened:
        yield opened


def staging(nbytes):
    return np.frombuffer(StagingBuffer(nbytes), np.uint8)


@pytest.mark.parametrize("cache_use", ["fill", "bypass"])
def test_all_tensors_pass_through_memory_that_is_far_smaller(weights, tensors, cache_use):
    memory = staging(7 * MIB)
    stream = _native.StagedStream(
        native_files(weights), [(name, None) for name in tensors], memory, 4, None, cache_use
    )
    found = {}
    while (lot := stream.next(True)) is not None:
        spans = [(offset, offset + nbytes) for _, offset, nbytes in lot]
        assert spans == sorted(spans)
        for number, offset, nbytes in lot:
            found[list(tensors)[number]] = memory[offset : offset + nbytes].copy()
        stream.give_back()
    stream.close()
    assert list(found) == list(tensors)
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)


def test_memory_that_is_not_given_back_is_not_written(weights, tensors):
    memory = staging(8 * MIB)
    stream = _native.StagedStream(
        native_files(weights), [(name, None) for name in tensors], memory, 4, None, "fill"
    )
    kept, lots = [], 0
    has_rested = False
    while (lot := stream.next(False)) or not has_rested:
        kept, lots = kept + lot, lots + bool(lot)
        # By now, all tensors that may arrive have arrived.
        has_rested = not lot and threads_rest()
    assert 0 < len(kept) < len(tensors)
    for number, offset, nbytes in kept:
        assert np.array_equal(memory[offset : offset + nbytes], list(tensors.values())[number])
    for _ in range(lots):
        stream.give_back()
    assert stream.next(True)
    stream.close()


def test_parts_are_staged_as_well(weights, tensors):
    memory = staging(2 * MIB)
    name = "t008"
    wanted = [(name, ByteSelection(first, (100,), (1,), 1)) for first in range(0, 4000, 100)]
    wanted.append((name, ByteSelection(3999, (1000,), (-4,), 1)))
    stream = _native.StagedStream(native_files(weights), wanted, memory, 4, None, "fill")
    found = []
    while (lot := stream.next(True)) is not None:
        [(_, offset, nbytes)] = lot
        found.append(memory[offset : offset + nbytes].copy())
        stream.give_back()
    assert np.array_equal(np.concatenate(found[:-1]), tensors[name])
    assert np.array_equal(found[-1], tensors[name][3999::-4])


def test_gaps_between_columns_take_half_of_the_memory(tmp_path):
    """Each thread that reads columns needs 1 MiB for the gaps."""
    folder = tmp_path / "source"
    folder.mkdir()
    tensors = {f"t{number:02}": np.full((1024, 1024), number, "u1") for number in range(32)}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    wanted = [(name, ByteSelection(512, (1024, 512), (1024, 1), 1)) for name in tensors]
    with (
        real.slow_fuse(folder, tmp_path / "slow", delay_ms=10, direct_io=True) as slow,
        open_checkpoint(slow.path / "model.safetensors") as weights,
    ):
        memory = staging(8 * MIB)
        stream = _native.StagedStream(native_files(weights), wanted, memory, 4, None, "fill")
        while (lot := stream.next(True)) is not None:
            for number, offset, nbytes in lot:
                assert (memory[offset : offset + nbytes] == number).all()
            stream.give_back()
        stream.close()
    assert slow.counts["most_in_flight"] <= 4


def test_too_small_and_read_only_memory_is_refused(weights, tensors):
    files = native_files(weights)
    with pytest.raises(ValueError, match=r"staging has 1048576 bytes, and 62\d* are needed at once"):
        _native.StagedStream(files, [(list(tensors)[-1], None)], staging(MIB), 4, None, "fill")
    read_only = staging(MIB)
    read_only.flags.writeable = False
    with pytest.raises(TypeError, match="writable"):
        _native.StagedStream(files, [("t000", None)], read_only, 4, None, "fill")
    with pytest.raises(ValueError, match="threads must be"):
        _native.StagedStream(files, [("t000", None)], staging(MIB), 0, None, "fill")


def test_failures_come_after_what_has_landed(tmp_path, tensors):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors, path)
    weights = open_checkpoint(path)
    stream = _native.StagedStream(
        native_files(weights), [(n, None) for n in weights], staging(7 * MIB), 1, None, "fill"
    )
    assert stream.next(True)
    stream.give_back()
    os.truncate(path, 1000)

    def use_up():
        while stream.next(True):
            stream.give_back()

    with pytest.raises(MappedReadError, match="truncated"):
        use_up()
    # An end of the stream would mean that all tensors have arrived.
    with pytest.raises(MappedReadError, match="truncated"):
        stream.next(True)
    stream.close()
