"""Streams of tensors: plans, order, memory, and failing storage."""

import ctypes
import errno
import gc
import json
import os
import random
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pagestream import MappedFile, TensorStream, open_checkpoint
from pagestream.errors import FileChangedError, FormatError, MappedReadError
from pagestream.weights import dtypes

from support import real
from support.mappings import place_in_file
from support.page_cache import seen_once
from support.process import PROGRAMS, output_of, start_python, threads_end
from support.rest import threads_rest
from support.weight_files import ELEMENT_TYPES, FLOATS, entry, odd_file, weight_file, write

MIB = 1 << 20
STRATEGIES = ["auto", "mapped", "pread", "direct"]
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)

# The alphabetic order of these names, their numeric order and their order in the files all differ.
SHARDS = [
    {"model.layers.10.w": (3000, 700), "model.layers.2.w": (500, 1024), "model.layers.2.b": (11,)},
    {"model.embed": (4, 5), "lm_head": (0, 7), "model.layers.0.w": (1024, 513), "scalar": ()},
]


@pytest.fixture(scope="module")
def tensors():
    rng = np.random.default_rng(7)
    return [
        {name: rng.standard_normal(shape).astype("<f4") for name, shape in shard.items()} for shard in SHARDS
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tensors):
    folder = tmp_path_factory.mktemp("streaming")
    for number, shard in enumerate(tensors, 1):
        safetensors.numpy.save_file(shard, folder / f"model-{number}.safetensors")
    return folder


@pytest.fixture
def everything(tensors):
    return {name: array for shard in tensors for name, array in shard.items()}


def evict(folder):
    for path in folder.glob("*.safetensors"):
        with MappedFile(path) as file:
            file.evict()
            assert file.residency().fraction == 0.0


def equal(found, expected):
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()


@every_strategy
def test_a_stream_has_every_tensor_in_the_order_of_the_files(folder, everything, strategy):
    with open_checkpoint(folder) as weights:
        found = list(weights.stream(strategy=strategy))
        assert [name for name, _ in found] == list(weights)
        for name, array in found:
            equal(array, everything[name])
    gc.collect()
    # Arrays outlive their checkpoint.
    for name, array in found:
        equal(array, everything[name])


def test_orders_are_those_of_the_files_of_the_plan_and_of_the_layers(folder):
    weights = open_checkpoint(folder)
    plan = ["scalar", "model.layers.10.w", "model.layers.0.w", "model.layers.2.b", "model.embed"]

    def names(order):
        return [name for name, _ in weights.stream(plan, order=order, strategy="pread")]

    assert names("plan") == plan
    assert names("file") == [name for name in weights if name in plan]
    assert names("layer") == [
        *(name for name in weights if name in ("scalar", "model.embed")),
        "model.layers.0.w",
        "model.layers.2.b",
        "model.layers.10.w",
    ]


@every_strategy
def test_a_plan_has_names_parts_or_a_function(folder, everything, strategy):
    weights = open_checkpoint(folder)

    def stream(plan):
        return dict(weights.stream(plan, strategy=strategy))

    assert list(stream(["model.embed"])) == ["model.embed"]
    assert stream([]) == {}
    parts = {"model.embed": None, "model.layers.10.w": np.s_[::-7, 100:300], "model.layers.2.b": 3}
    found = stream(parts)
    assert set(found) == set(parts)
    equal(found["model.embed"], everything["model.embed"])
    equal(found["model.layers.10.w"], everything["model.layers.10.w"][::-7, 100:300])
    assert found["model.layers.2.b"] == everything["model.layers.2.b"][3]
    found = stream(
        lambda info: np.s_[:, :2] if info.shape == (4, 5) else None if info.nbytes > MIB else False
    )
    assert set(found) == {"model.embed", "model.layers.10.w", "model.layers.2.w", "model.layers.0.w"}
    equal(found["model.embed"], everything["model.embed"][:, :2])
    equal(found["model.layers.0.w"], everything["model.layers.0.w"])
    for yes, no in ((True, False), (np.True_, np.False_)):
        found = stream(lambda info, yes=yes, no=no: yes if info.name == "model.layers.2.w" else no)
        assert set(found) == {"model.layers.2.w"}
        equal(found["model.layers.2.w"], everything["model.layers.2.w"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_parts_are_what_numpy_selects(folder, everything, data):
    weights = open_checkpoint(folder)
    names = data.draw(st.lists(st.sampled_from(sorted(everything)), unique=True))
    plan = {
        name: data.draw(st.none() | arrays.basic_indices(everything[name].shape, allow_newaxis=True))
        for name in names
    }
    found = weights.stream(
        plan,
        order="plan",
        strategy=data.draw(st.sampled_from(["pread", "direct"])),
        memory_bytes=data.draw(st.integers(1, 4 * MIB)),
    )
    for (name, array), wanted in zip(found, names, strict=True):
        assert name == wanted
        expected = everything[name] if plan[name] is None else everything[name][plan[name]]
        assert array.shape == expected.shape
        assert array.tobytes() == expected.tobytes()


def test_every_element_type_is_streamed(tmp_path):
    header, data = {}, b""
    for code, _, kind in ELEMENT_TYPES:
        values = np.arange(24).astype(kind)
        header[code] = entry(code, [2, 12], len(data), len(data) + values.nbytes)
        data += values.tobytes()
    header["F4"] = entry("F4", [3, 8], len(data), len(data) + 12)
    data += bytes(range(12))
    weights = open_checkpoint(write(tmp_path / "types.safetensors", weight_file(header, data)))
    for name, array in weights.stream(strategy="pread"):
        equal(array, weights[name])
    part = dict.fromkeys(weights, np.s_[:, 1:5])
    for name, array in weights.stream(part, strategy="pread"):
        equal(array, weights[name][:, 1:5])
    assert weights["F4"].dtype == ml_dtypes.float4_e2m1fn
    raw = open_checkpoint(tmp_path / "types.safetensors", raw=True)
    for name, array in raw.stream(strategy="pread"):
        equal(array, raw[name])


def test_misaligned_tensors_are_aligned_copies(tmp_path):
    weights = open_checkpoint(odd_file(tmp_path / "odd.safetensors"))
    found = dict(weights.stream(strategy="pread"))
    equal(found["floats"], FLOATS)
    assert found["floats"].flags.aligned


@pytest.mark.parametrize("strategy", [*STRATEGIES, "ahead"])
@pytest.mark.parametrize("is_cached", [True, False])
def test_arrays_are_read_only_whatever_is_cached(folder, everything, strategy, is_cached):
    """Code that ignores the flag, such as torch, writes to the process's memory and not to the file."""
    weights = open_checkpoint(folder)
    if is_cached:
        for array in weights.values():
            array.sum()
        del array
    else:
        evict(folder)
    for name, array in weights.stream(strategy=strategy):
        assert not array.flags.writeable
        equal(array, everything[name])
        ctypes.memset(array.ctypes.data, 7, array.nbytes)
        assert not array.nbytes or array.tobytes() == bytes([7]) * array.nbytes
    equal(open_checkpoint(folder)["model.embed"], everything["model.embed"])


@pytest.mark.parametrize("strategy", [*STRATEGIES, "ahead"])
def test_copies_are_the_callers(folder, everything, strategy, tmp_path):
    """Copies do not depend on their file."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = open_checkpoint(tmp_path)
    plan = dict.fromkeys(everything, None) | {"model.layers.0.w": np.s_[3:500, ::2]}
    found = dict(weights.stream(plan, strategy=strategy, copy=True))
    for path in weights.files:
        with open(path, "r+b") as file:
            file.write(bytes(os.path.getsize(path)))
        os.truncate(path, 8)
    for name, array in found.items():
        equal(array, everything[name] if plan[name] is None else everything[name][plan[name]])
        assert array.flags.writeable
        array[...] = 7


def test_copy_is_true_or_false(folder):
    with pytest.raises(TypeError, match="copy must be True or False, not 1"):
        open_checkpoint(folder).stream(copy=1)


def test_auto_views_cached_tensors_and_reads_the_others(folder):
    def views(weights):
        arrays = [array for _, array in weights.stream() if array.size]
        return {any(place_in_file(array, path) for path in weights.files) for array in arrays}

    weights = open_checkpoint(folder)
    for array in weights.values():
        array.sum()
    assert views(weights) == {True}
    weights.close()
    del array, weights
    gc.collect()  # mapped pages stay in the cache
    evict(folder)
    assert views(open_checkpoint(folder)) == {False}
    assert views(open_checkpoint(folder, mmap_mode="read")) == {False}


@pytest.mark.parametrize(
    ("options", "expected_bytes"),
    [({}, 256 << 10), ({"read_ahead_bytes": 512 << 10}, MIB), ({"direct_io": True}, MIB)],
    ids=["read-ahead of 128 KiB", "read-ahead of 512 KiB", "direct_io"],
)
def test_requests_are_as_large_as_the_mount_allows(tmp_path, options, expected_bytes):
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file(
        {f"t{number}": np.full(16 * MIB, number, "u1") for number in range(4)}, source / "model.safetensors"
    )
    evict(source)
    with (
        real.slow_fuse(source, tmp_path / "slow", delay_ms=10, **options) as slow,
        open_checkpoint(slow.path) as weights,
    ):
        for number, (_, array) in enumerate(weights.stream()):
            assert array.sum() == number * 16 * MIB
    assert slow.counts["largest_request_bytes"] == expected_bytes
    # The threads share the first tensor, which comes in requests of 256 KiB.
    assert slow.counts["read_requests"] <= 64 + 1.1 * 48 * MIB / expected_bytes + 16


def test_numbers_of_any_length_order_layers(tmp_path):
    names = ["l." + "9" * 5000, "l.10", "l.9", "l.008"]
    safetensors.numpy.save_file({name: np.zeros(3, "u1") for name in names}, tmp_path / "l.safetensors")
    weights = open_checkpoint(tmp_path / "l.safetensors")
    assert [name for name, _ in weights.stream(order="layer")] == ["l.008", "l.9", "l.10", names[0]]


def test_views_need_a_mapping(folder):
    with pytest.raises(ValueError, match='strategy="mapped" needs a mapping'):
        open_checkpoint(folder, mmap_mode="read").stream(strategy="mapped")


def test_bad_plans_and_words_are_refused_before_anything_is_read(folder):
    weights = open_checkpoint(folder)
    with pytest.raises(KeyError, match="nothing"):
        weights.stream(["nothing"])
    with pytest.raises(TypeError, match="plan must be names, not one"):
        weights.stream("model.embed")
    with pytest.raises(TypeError, match="plan must have names of tensors, not 3"):
        weights.stream([3])
    with pytest.raises(TypeError, match=r"plan must have names of tensors, not \['lm_head'\]"):
        weights.stream([["lm_head"]])
    with pytest.raises(TypeError, match="plan must have names of tensors, not 3"):
        weights.stream({3: None})
    with pytest.raises(TypeError, match="plan must be names, a mapping or a function, not 3"):
        weights.stream(3)
    with pytest.raises(ValueError, match="plan has 'lm_head' twice"):
        weights.stream(["lm_head", "scalar", "lm_head"])
    with pytest.raises(IndexError, match=r"safetensors: tensor 'model.embed': .* out of bounds"):
        weights.stream({"model.embed": 9})
    with pytest.raises(TypeError, match="progress must be True, False or a callable, not 3"):
        weights.stream(progress=3)
    with pytest.raises(ValueError, match='order must be "file", "plan" or "layer", not \'name\''):
        weights.stream(order="name")
    with pytest.raises(
        ValueError, match='strategy must be "auto", "mapped", "ahead", "pread" or "direct", not \'fast\''
    ):
        weights.stream(strategy="fast")
    with pytest.raises(ValueError, match="threads must be 1 to 1024, not 2000"):
        weights.stream(threads=2000)
    with pytest.raises(ValueError, match="memory_bytes must be at least 1"):
        weights.stream(memory_bytes=0)
    weights.close()
    with pytest.raises(ValueError, match="closed"):
        list(weights.stream(strategy="pread"))


def test_the_lead_stays_within_the_budget_until_the_consumer_goes_on(tmp_path):
    tensors = {f"t{number:02}": np.full(MIB, number, "u1") for number in range(24)}
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file(tensors, source / "model.safetensors")
    with real.slow_fuse(source, tmp_path / "slow", direct_io=True) as slow:
        weights = open_checkpoint(slow.path / "model.safetensors")
        stream = weights.stream(memory_bytes=4 * MIB, threads=8, strategy="pread")
        name, array = next(stream)
        assert (name, array[0]) == ("t00", 0)
        assert threads_rest()
        stream.close()
        weights.close()
    # The limit covers four tensors and the header.
    assert slow.counts["read_bytes"] <= 4 * MIB + 64 * 1024


def test_a_tensor_larger_than_the_budget_is_read(folder, everything):
    found = dict(open_checkpoint(folder).stream(memory_bytes=1, strategy="pread"))
    for name, array in found.items():
        equal(array, everything[name])


@pytest.mark.parametrize("direct", [False, True])
def test_many_requests_are_in_flight_on_a_slow_mount(tmp_path, direct):
    source = tmp_path / "source"
    source.mkdir()
    tensors = {f"t{number:02}": np.full(MIB, number, "u1") for number in range(64)}
    safetensors.numpy.save_file(tensors, source / "model.safetensors")
    # Cached FUSE allows 12 requests of the kernel at a time (max_background).
    gather = 24 if direct else 10
    with real.slow_fuse(source, tmp_path / "slow", direct_io=direct, gather=gather) as slow:
        with open_checkpoint(slow.path / "model.safetensors") as weights:
            for name, array in weights.stream():
                equal(array, tensors[name])
        del array
        gc.collect()
    assert slow.counts["most_in_flight"] >= gather
    needed = sum(array.nbytes for array in tensors.values())
    assert needed <= slow.counts["read_bytes"] <= 1.02 * needed


def test_slices_read_only_what_they_need(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    tensors = {f"t{number}": np.arange(1024 * 1024, dtype="<f4").reshape(1024, 1024) for number in range(4)}
    safetensors.numpy.save_file(tensors, source / "model.safetensors")
    with real.slow_fuse(source, tmp_path / "slow", delay_ms=1, direct_io=True) as slow:
        weights = open_checkpoint(slow.path / "model.safetensors")
        for name, array in weights.stream(lambda _info: np.s_[256:384]):
            equal(array, tensors[name][256:384])
        weights.close()
    needed = 4 * 128 * 4096
    assert needed <= slow.counts["read_bytes"] <= 1.2 * needed


@pytest.mark.parametrize("direct", [False, True], ids=["cached", "direct_io"])
def test_columns_on_a_slow_mount_are_read_with_the_gaps_between_them(tmp_path, direct):
    """One request takes as long as reading many gaps."""
    source = tmp_path / "source"
    source.mkdir()
    matrix = np.arange(2048 * 2048, dtype="<u4").reshape(2048, 2048)
    safetensors.numpy.save_file({"t": matrix}, source / "model.safetensors")
    with (
        real.slow_fuse(source, tmp_path / "slow", delay_ms=10, direct_io=direct) as slow,
        open_checkpoint(slow.path / "model.safetensors") as weights,
    ):
        [(_, found)] = weights.stream({"t": np.s_[:, 512:768]}, strategy="pread")
        equal(found, matrix[:, 512:768])
        found = weights.read("t", np.s_[:, 1024:1280])
        equal(found, matrix[:, 1024:1280])
    # Each slice has 2,048 runs of 1 KiB. The whole matrix takes 128 requests.
    assert slow.counts["read_requests"] <= 4 * 128
    assert slow.counts["read_bytes"] <= 2 * matrix.nbytes * 1.05


def test_runs_of_64_kib_are_read_without_gaps_on_any_mount(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    matrix = np.arange(64 * 65536, dtype="<u4").reshape(64, 65536)
    safetensors.numpy.save_file({"t": matrix}, source / "model.safetensors")
    with (
        real.slow_fuse(source, tmp_path / "slow", delay_ms=10, direct_io=True) as slow,
        open_checkpoint(slow.path / "model.safetensors") as weights,
    ):
        [(_, found)] = weights.stream({"t": np.s_[:, 16384:32768]})
        equal(found, matrix[:, 16384:32768])
    assert found.nbytes <= slow.counts["read_bytes"] <= 1.05 * found.nbytes


def test_a_file_that_was_cut_is_an_error_with_path_and_offset(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({f"t{number}": np.ones(MIB, "u1") for number in range(8)}, path)
    weights = open_checkpoint(path)
    os.truncate(path, 3 * MIB)
    with pytest.raises(MappedReadError, match="truncated") as caught:
        list(weights.stream(strategy="pread"))
    assert caught.value.filename == str(path)
    assert int(re.search(r"at offset (\d+)", str(caught.value))[1]) >= 3 * MIB


def test_a_file_that_was_rewritten_is_an_error(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"t": np.ones(MIB, "u1")}, path)
    weights = open_checkpoint(path)
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"changed!")
    with pytest.raises(FileChangedError):
        list(weights.stream(strategy="pread"))


@pytest.mark.parametrize("strategy", ["auto", "mapped", "ahead"])
@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_file_that_is_rewritten_while_views_of_it_come_is_an_error(tmp_path, strategy, number):
    """This includes the last tensor: the program may have computed with bytes of the new file."""
    path = tmp_path / "model.safetensors"
    old, new = ({f"t{each}": np.full(MIB, byte, "u1") for each in range(6)} for byte in (1, 2))
    safetensors.numpy.save_file(old, path)
    with open_checkpoint(path) as weights:
        stream = weights.stream(strategy=strategy)
        for _ in range(number + 1):
            assert (next(stream)[1] == 1).all()
        with open(path, "r+b") as file:
            file.write(safetensors.numpy.save(new))
        with pytest.raises(FileChangedError, match=r"model\.safetensors"):
            next(stream)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "ahead"])
def test_single_elements_are_arrays(folder, everything, strategy):
    plan = {"scalar": (), "model.embed": np.s_[-1, 2], "model.layers.2.b": 3}
    for name, array in open_checkpoint(folder).stream(plan, strategy=strategy):
        assert type(array) is np.ndarray
        assert array.shape == ()
        assert array == everything[name][plan[name]]


@pytest.mark.parametrize("strategy", [*STRATEGIES, "ahead"])
def test_single_elements_that_are_smaller_than_a_byte_are_arrays(tmp_path, strategy):
    header = {"a": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}
    encoded = json.dumps(header).encode()
    content = len(encoded).to_bytes(8, "little") + encoded + bytes([0x20, 0x64, 0x20, 0x64])
    (tmp_path / "model.safetensors").write_bytes(content)
    weights = open_checkpoint(tmp_path / "model.safetensors")
    [(_, array)] = weights.stream({"a": (1, -1)}, strategy=strategy)
    assert type(array) is np.ndarray
    assert array.shape == ()
    assert array == weights["a"][1, 3]


def test_limits_hold_before_the_first_tensor(tmp_path):
    """A trial of the mount would need extra threads and memory."""
    source = tmp_path / "source"
    source.mkdir()
    sparse_checkpoint(source / "model.safetensors", tensors=130, tensor_bytes=16 * MIB)
    with (
        real.slow_fuse(source, tmp_path / "slow", delay_ms=1) as slow,
        open_checkpoint(slow.path) as weights,
    ):
        stream = weights.stream(memory_bytes=MIB, threads=1)
        next(stream)
        stream.close()
    assert slow.counts["most_in_flight"] <= 2
    assert slow.counts["read_bytes"] <= 40 * MIB


def test_a_mount_is_tried_with_pieces_of_several_small_tensors(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    sparse_checkpoint(source / "model.safetensors", tensors=4200, tensor_bytes=MIB // 2)
    with (
        real.slow_fuse(source, tmp_path / "slow", delay_ms=1) as slow,
        open_checkpoint(slow.path) as weights,
    ):
        assert "64 reads of 1 MiB side by side took" in weights.explain()


@pytest.mark.parametrize("strategy", ["pread", "direct", "auto"])
@pytest.mark.parametrize("direct_io", [False, True], ids=["cached", "direct_io"])
def test_no_tensor_is_torn_though_the_kernel_does_not_know_yet(tmp_path, direct_io, strategy):
    """The kernel caches the attributes of a file for a second."""
    source = tmp_path / "source"
    source.mkdir()
    old, new = ({f"t{number:02}": np.full(MIB, byte, "u1") for number in range(24)} for byte in (1, 2))
    safetensors.numpy.save_file(old, source / "m.safetensors")
    with (
        real.slow_fuse(source, tmp_path / "slow", delay_ms=10, direct_io=direct_io) as slow,
        open_checkpoint(slow.path) as weights,
    ):
        stream = weights.stream(strategy=strategy, memory_bytes=4 * MIB)
        assert (next(stream)[1] == 1).all()
        with open(source / "m.safetensors", "r+b") as file:
            file.write(safetensors.numpy.save(new))
        found = []
        with pytest.raises(FileChangedError, match=r"m\.safetensors"):
            found.extend(np.unique(array).tolist() for _, array in stream)
        assert found == [[1]] * len(found)


def test_storage_that_fails_ends_the_stream_with_its_cause(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file({f"t{n:02}": np.ones(MIB, "u1") for n in range(32)}, source / "m.safetensors")
    failing = real.slow_fuse(source, tmp_path / "slow", direct_io=True, fail_range=(20 * MIB, 21 * MIB))
    with failing as slow:
        weights = open_checkpoint(slow.path / "m.safetensors")
        stream = weights.stream(memory_bytes=2 * MIB)
        with pytest.raises(MappedReadError) as caught:
            list(stream)
        assert caught.value.errno == errno.EIO
        assert caught.value.filename == str(slow.path / "m.safetensors")
        assert 20 * MIB - 512 * 1024 <= caught.value.offset <= 21 * MIB
        assert list(stream) == []
        assert threads_end("pagestream-read")
        weights.close()


def test_a_stream_that_is_left_stops_its_threads_and_frees_its_memory(folder):
    weights = open_checkpoint(folder)
    stream = weights.stream(strategy="pread", threads=4)
    next(stream)
    del stream
    gc.collect()
    assert threads_end("pagestream-read")


def test_streams_of_several_threads_do_not_disturb_each_other(folder, everything):
    weights = open_checkpoint(folder)

    def load(_number):
        return {name: array.tobytes() for name, array in weights.stream(strategy="pread", memory_bytes=MIB)}

    with ThreadPoolExecutor(6) as pool:
        for found in pool.map(load, range(12)):
            assert found == {name: array.tobytes() for name, array in everything.items()}


def test_a_child_of_a_fork_is_told_and_streams_of_its_own_work(folder):
    assert output_of(PROGRAMS / "weights_streaming" / "forked.py", folder) == "told\n7"


def test_ctrl_c_works_while_a_read_hangs(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file({"t": np.ones(8 * MIB, "u1")}, source / "m.safetensors")
    with real.slow_fuse(source, tmp_path / "slow", direct_io=True) as slow:
        slow.gate.hold(4096)
        program = PROGRAMS / "weights_streaming" / "interrupted.py"
        with start_python(program, slow.path / "m.safetensors") as process:
            slow.gate.wait_for(1)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "heard after 0 tensors\n"
            slow.gate.open()


def test_progress_counts_the_bytes_of_the_plan(folder):
    weights = open_checkpoint(folder)
    seen = []
    plan = {"model.embed": np.s_[:2], "model.layers.2.b": None}
    list(weights.stream(plan, strategy="pread", progress=lambda done, total: seen.append((done, total))))
    assert seen[-1] == (2 * 5 * 4 + 11 * 4, 2 * 5 * 4 + 11 * 4)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_type_that_numpy_lacks_names_the_tensor(tmp_path, monkeypatch):
    header = {"odd": entry("F8_E8M0", [4], 0, 4)}
    weights = open_checkpoint(write(tmp_path / "m.safetensors", weight_file(header, bytes(4))))
    monkeypatch.delitem(dtypes.KNOWN, "F8_E8M0", raising=False)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(FormatError, match="tensor 'odd' at byte"):
        list(weights.stream(strategy="pread"))


def mebibyte_tensors(path, count):
    tensors = {f"t{number:02}": np.full(MIB, number, "u1") for number in range(count)}
    safetensors.numpy.save_file(tensors, path)


def sparse_checkpoint(path, *, tensors, tensor_bytes):
    """Writes a file of zeros that takes no disk space."""
    entries = {
        f"t{number:02}": entry("U8", [tensor_bytes], number * tensor_bytes, (number + 1) * tensor_bytes)
        for number in range(tensors)
    }
    write(path, weight_file(entries, b""))
    os.truncate(path, path.stat().st_size + tensors * tensor_bytes)


def test_ahead_fills_the_page_cache_and_yields_views(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    mebibyte_tensors(source / "model.safetensors", 32)
    evict(source)
    with real.slow_fuse(source, tmp_path / "slow", gather=10) as slow:
        with open_checkpoint(slow.path / "model.safetensors") as weights:
            found = dict(weights.stream(strategy="ahead"))
        for name, array in found.items():
            assert (array == int(name[1:])).all()
            assert not array.flags.writeable
            assert not array.flags.owndata
        del found, array
    assert slow.counts["most_in_flight"] >= 10
    assert 32 * MIB <= slow.counts["read_bytes"] <= 1.05 * 32 * MIB


def test_ahead_needs_the_page_cache(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    mebibyte_tensors(source / "model.safetensors", 2)
    with real.slow_fuse(source, tmp_path / "slow", direct_io=True) as slow:
        weights = open_checkpoint(slow.path / "model.safetensors")
        with pytest.raises(ValueError, match=r"needs the page cache: reads of .* bypass"):
            weights.stream(strategy="ahead")
        weights.close()


@pytest.mark.parametrize("direct", [False, True], ids=["cached", "direct_io"])
def test_the_explanation_has_facts_decision_and_reasons(tmp_path, monkeypatch, direct):
    source = tmp_path / "source"
    source.mkdir()
    # A single tensor is too small to time requests with.
    tensors = {f"t{number:02}": np.zeros(MIB // 2, "u1") for number in range(16)}
    safetensors.numpy.save_file({**tensors, "u": np.zeros(3)}, source / "model.safetensors")
    evict(source)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with real.slow_fuse(source, tmp_path / "slow", delay_ms=5, direct_io=direct) as slow:
        weights = open_checkpoint(slow.path / "model.safetensors")
        text = weights.explain(list(tensors))
        random.seed(5)
        numbers = random.random()
        random.seed(5)
        small = weights.explain(["t00"])
        assert random.random() == numbers
        weights.close()
    assert "the tensors are too small to time requests" in small
    assert text.startswith("16 tensors of 8 MiB in 1 file\n")
    assert f"1 file on {slow.path} (fuse, slow_fuse; " in text
    assert ("ENODEV" in text) == direct
    assert f"reads {'bypass' if direct else 'come out of'} the page cache" in text
    assert "processes of this job on this node: 4" in text
    assert "16 reads of 128 KiB side by side: " in text
    assert "16 reads of 128 KiB side by side past the page cache: " in text
    taken = '"pread": reads of' if direct else '"ahead": byte '
    assert f'stream(strategy="auto") takes {taken}' in text
    # The limit covers the file's header, 17 requests, and the sampled pages.
    assert slow.counts["read_bytes"] <= 6 * MIB


def test_cached_bytes_are_not_timed(folder):
    weights = open_checkpoint(folder)
    for _ in weights.stream(strategy="pread"):
        pass
    text = weights.explain()
    assert 'takes "mapped": all of 64 sampled pages are in the page cache' in text
    assert "a second" not in text
    assert weights.explain([]).startswith("0 tensors of 0 bytes in 0 files\n")


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("auto", "arrays lie on copy-on-write pages"),
        ("shared", 'arrays lie on read-only pages (mode "shared" was asked for): a write to them'),
    ],
)
def test_explain_reports_the_pages_of_arrays(folder, mode, told):
    assert told in open_checkpoint(folder, mmap_mode=mode).explain()
    assert "arrays lie" not in open_checkpoint(folder, mmap_mode="read").explain()


def test_without_copy_on_write_pages_arrays_lie_on_read_only_ones(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"x": np.arange(8 << 20, dtype="<f4")}, path)
    program = PROGRAMS / "weights_streaming/no_private_memory.py"
    assert output_of(program, path) == "r--s"


def resident_bytes(folder):
    found = 0
    for path in folder.glob("*.safetensors"):
        with MappedFile(path) as file:
            found += file.residency().fraction * file.size
    return found


@pytest.mark.parametrize("mmap_mode", ["shared", "private", "read"])
@pytest.mark.parametrize(
    "options", [{"strategy": "direct"}, {"strategy": "pread", "drop_behind": True}, {"drop_behind": True}]
)
def test_the_page_cache_stays_as_it_was(tmp_path, tensors, options, mmap_mode):
    for number, shard in enumerate(tensors):
        safetensors.numpy.save_file(shard, tmp_path / f"{number}.safetensors")
    evict(tmp_path)
    with open_checkpoint(tmp_path, mmap_mode=mmap_mode) as weights:
        plan = dict.fromkeys(weights) | {"model.layers.10.w": np.s_[:, 100:300]}
        found = dict(weights.stream(plan, **options))
    for shard in tensors:
        for name, array in shard.items():
            equal(found[name], array[plan[name]] if plan[name] else array)
    # Headers are read as usual, with the kernel's read-ahead.
    assert resident_bytes(tmp_path) <= 512 * 1024
    stored = sum(array.nbytes for shard in tensors for array in shard.values())

    def ordinary_reads_stay():
        with open_checkpoint(tmp_path, mmap_mode=mmap_mode) as weights:
            dict(weights.stream(strategy="pread"))
        return resident_bytes(tmp_path) > 0.99 * stored

    assert seen_once(ordinary_reads_stay)


def test_pages_cached_before_stay_cached(tmp_path):
    mebibyte_tensors(tmp_path / "model.safetensors", 16)
    evict(tmp_path)
    with open_checkpoint(tmp_path) as weights:
        weights.read("t05")
        before = resident_bytes(tmp_path)
        dict(weights.stream(strategy="pread", drop_behind=True))
    assert MIB <= before <= resident_bytes(tmp_path) <= before + 2 * MIB


def test_views_and_drop_behind_exclude_each_other(folder):
    weights = open_checkpoint(folder)
    for strategy in ("mapped", "ahead"):
        with pytest.raises(ValueError, match="drop_behind=True would empty"):
            weights.stream(strategy=strategy, drop_behind=True)
    with pytest.raises(TypeError, match="drop_behind must be True or False"):
        weights.stream(drop_behind=1)


@pytest.mark.parametrize("call", ["open", "read"])
def test_refused_direct_reads_go_through_the_page_cache(tmp_path, call):
    source = tmp_path / "source"
    source.mkdir()
    mebibyte_tensors(source / "model.safetensors", 16)
    with (
        real.slow_fuse(source, tmp_path / "slow", refuse_direct=call) as slow,
        open_checkpoint(slow.path / "model.safetensors") as weights,
    ):
        for name, array in weights.stream(strategy="direct"):
            assert (array == int(name[1:])).all()
    assert 16 * MIB <= slow.counts["read_bytes"] <= 1.05 * 16 * MIB


@pytest.mark.parametrize("call", ["open", "read"])
def test_the_explanation_says_that_direct_reads_are_refused(tmp_path, call):
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file({"t": np.zeros(8 * MIB, "u1")}, source / "model.safetensors")
    with (
        real.slow_fuse(source, tmp_path / "slow", refuse_direct=call) as slow,
        open_checkpoint(slow.path / "model.safetensors") as weights,
    ):
        text = weights.explain()
    verb = "opened" if call == "open" else "read"
    assert re.search(
        rf"direct I/O: refused \(O_DIRECT: EINVAL \(Invalid argument\) when .* is {verb}\)", text
    )
    assert "past the page cache" not in text


def test_direct_reads_ask_for_whole_pages_once(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    mebibyte_tensors(source / "model.safetensors", 32)
    with (
        real.slow_fuse(source, tmp_path / "slow", gather=10) as slow,
        open_checkpoint(slow.path / "model.safetensors") as weights,
    ):
        for name, array in weights.stream(strategy="direct"):
            assert (array == int(name[1:])).all()
    assert 32 * MIB <= slow.counts["read_bytes"] <= 1.02 * 32 * MIB
    assert slow.counts["most_in_flight"] >= 10


def test_auto_goes_past_a_page_cache_that_is_much_slower(tmp_path):
    """The kernel fills the cache in requests of 128 KiB, and the daemon accepts twelve of them at a time."""
    source = tmp_path / "source"
    source.mkdir()
    sparse_checkpoint(source / "model.safetensors", tensors=16, tensor_bytes=128 * MIB)
    # All direct reads wait at the same time and take a seventh of the time. On a busy machine, a trial may
    # still measure a smaller advantage. The test then tries again in another process.
    for _ in range(20):
        with real.slow_fuse(source, tmp_path / "slow", delay_ms=60, background=12) as slow:
            printed = json.loads(output_of(PROGRAMS / "weights_streaming/chosen.py", slow.path))
        if printed["first"][0] == "direct":
            break
    assert "64 reads of 1 MiB side by side took" in printed["first"][1]
    assert printed["first"][0] == printed["second"][0] == "direct", printed
    # The second call uses the result of the first trial.
    assert 2 * 64 * MIB <= slow.counts["read_bytes"] <= 2.1 * 64 * MIB


def test_a_mount_that_is_too_slow_to_be_tried_is_tried_once(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    sparse_checkpoint(source / "model.safetensors", tensors=16, tensor_bytes=128 * MIB)
    with real.slow_fuse(source, tmp_path / "slow", bandwidth_bytes=16 * MIB) as slow:
        printed = json.loads(output_of(PROGRAMS / "weights_streaming/chosen.py", slow.path))
        assert printed["first"][0] == printed["second"][0] == "pread"
        assert "reads of 64 MiB side by side take more than 2s" in printed["second"][1]
        assert printed["limited"][1] != printed["second"][1]
    # Reading everything twice would take 128 MiB.
    assert slow.counts["read_bytes"] <= 100 * MIB


def test_a_file_that_is_partly_in_memory_is_not_opened_anew(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    tensors = {f"t{number}": np.full(16 * MIB, number, "u1") for number in range(4)}
    safetensors.numpy.save_file(tensors, source / "model.safetensors")
    with (
        real.slow_fuse(source, tmp_path / "slow") as slow,
        open_checkpoint(slow.path / "model.safetensors") as weights,
    ):
        assert weights.warm(["t0", "t1", "t2"]).wait()
        assert "direct I/O: not tried" in weights.explain(["t3"])
        assert weights.warm(["t0", "t1", "t2"]).wait()
    assert slow.counts["read_bytes"] <= 54 * MIB


def test_small_streams_are_not_tried(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    sparse_checkpoint(source / "model.safetensors", tensors=4, tensor_bytes=128 * MIB)
    with real.slow_fuse(source, tmp_path / "slow", threads=12) as slow:
        printed = json.loads(output_of(PROGRAMS / "weights_streaming/chosen.py", slow.path))
        assert printed["first"][0] == "pread"
    assert slow.counts["read_bytes"] <= 4 * MIB


def test_a_stream_has_the_length_of_its_plan(folder, everything):
    weights = open_checkpoint(folder)
    with weights.stream() as stream:
        assert isinstance(stream, TensorStream)
        assert len(stream) == len(everything) == len(weights)
        name, _ = next(stream)
        assert name == next(iter(weights))
        assert len(stream) == len(everything)  # the length of the plan, for progress bars
        assert [name for name, _ in stream] == [*weights][1:]
    assert len(weights.stream(["scalar"])) == 1
    empty = weights.stream([])
    assert len(empty) == len([*empty]) == 0
    assert empty

    with weights.stream(strategy="pread") as stream:
        next(stream)
    assert [*stream] == []  # the block has closed the stream
