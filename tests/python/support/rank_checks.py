"""The checks on the ranks of a process group: functions that all ranks run in sequence.

``rank_checks.py RESULTS``: the file of each rank in RESULTS gets the failure of each check, or None. RESULTS
also contains ``source``, a folder with a checkpoint, and ``mount``, which shows it without a page cache.
"""

import gc
import json
import os
import random
import sys
import threading
import time
import traceback
import weakref
import zlib
from contextlib import chdir, closing, nullcontext
from datetime import timedelta
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.quantized_hf_storage import (
    QuantizedHuggingFaceStorageReader as TorchQuantizedReader,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import empty as distributed_empty

from pagestream import open_checkpoint
from pagestream.errors import FileChangedError, RankError
from pagestream.torch import (
    HuggingFaceStorageReader,
    QuantizedHuggingFaceStorageReader,
    _exchange,
    _meeting,
    _store,
    load_into,
    load_state_dict,
    modules,
    storage_readers,
    stream_checkpoint,
    weights,
)
from pagestream.torch._exchange import together
from pagestream.torch._joining import joined
from pagestream.weights import streaming


def source_of(folder):
    """Returns the folder behind a folder of the mount."""
    place = folder.parts.index("mount")
    return Path(*folder.parts[:place], "source", *folder.parts[place + 1 :])


def everything(folder):
    found = {}
    for path in sorted(source_of(folder).glob("*.safetensors")):
        found |= load_file(path)
    return found


def is_equal(found, expected):
    return found.dtype == expected.dtype and found.shape == expected.shape and torch.equal(found, expected)


def share(length):
    """Returns the bounds of this rank's share."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return length * rank // size, length * (rank + 1) // size


def streamed(folder, plan, **options):
    """Streams a plan, compares each tensor with safetensors' result, and returns the names."""
    expected = everything(folder)
    names = []
    stream = stream_checkpoint(folder, device="cpu", plan=plan, process_group=dist.group.WORLD, **options)
    for name, tensor in stream:
        index = plan.get(name) if isinstance(plan, dict) else None
        wanted = expected[name] if index is None else torch.from_numpy(as_array(expected[name])[index].copy())
        wanted = wanted if index is None else wanted.view(expected[name].dtype)
        assert is_equal(tensor, wanted), name
        names.append(name)
    return names


def as_array(tensor):
    """Returns an array with the same elements, for indices that torch lacks."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    return tensor.view(bits).numpy()


def plan_of(folder, index_of):
    shapes = {name: tuple(tensor.shape) for name, tensor in everything(folder).items()}
    return {
        name: index_of(shape) if len(shape) > 1 and min(shape) > 8 else None for name, shape in shapes.items()
    }


def the_same_for_all(folder):
    assert streamed(folder, None) == list(load_state_dict(folder))


def rows(folder):
    streamed(folder, plan_of(folder, lambda shape: np.s_[slice(*share(shape[0]))]))


def columns(folder):
    streamed(folder, plan_of(folder, lambda shape: np.s_[:, slice(*share(shape[1]))]))


def rows_in_turn(folder):
    """The ranks take every n-th row: all rows together, a few of many rows, or all rows in reverse."""
    rank, size = dist.get_rank(), dist.get_world_size()
    streamed(folder, plan_of(folder, lambda _: np.s_[rank::size]))
    streamed(folder, plan_of(folder, lambda _: np.s_[rank::64, ::2]))
    streamed(folder, plan_of(folder, lambda _: np.s_[-1 - rank :: -size]))


def other_parts_on_each_rank(folder):
    indices = [np.s_[5::-2, None, np.int64(3)], np.s_[-3:, 7:9], None, np.s_[..., ::3]]
    streamed(folder, plan_of(folder, lambda _: indices[dist.get_rank() % len(indices)]))


def some_tensors_on_each_rank(folder):
    names = list(everything(folder))
    mine = names[dist.get_rank() :: dist.get_world_size()]
    assert sorted(streamed(folder, mine)) == sorted(mine)
    # The first rank requests nothing.
    assert streamed(folder, [] if dist.get_rank() == 0 else names[:3]) == (
        [] if dist.get_rank() == 0 else names[:3]
    )


def little_memory(folder):
    streamed(folder, None, memory_bytes=1 << 20)


def rows_and_whole_tensors_with_little_memory(folder):
    """Each rank also reads some parts for itself, between the rounds of shared parts."""
    streamed(folder, plan_of(folder, lambda shape: np.s_[slice(*share(shape[0]))]), memory_bytes=1 << 20)


def tensors_that_are_not_shared_come_without_waiting(folder):
    """The last rank waits until the other ranks finish. They need nothing from it until the end."""
    plan = plan_of(folder, lambda shape: np.s_[slice(*share(shape[0]))])
    plan = {name: index for name, index in plan.items() if index is not None}
    group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
    last = dist.get_world_size() - 1
    keys = [f"all came to {rank}" for rank in range(last)]
    stream = stream_checkpoint(folder, device="cpu", plan=plan, memory_bytes=1 << 20, process_group=group)
    for number, _ in enumerate(stream, 1):
        if dist.get_rank() == last and number == 1 and keys:
            store.wait(keys, timedelta(seconds=60))
        if dist.get_rank() != last and number == len(plan):
            store.set(keys[dist.get_rank()], "")


def another_memory_on_each_rank(folder):
    """The ranks still divide the work in the same way."""
    streamed(folder, None, memory_bytes=1 << 20 + 3 * dist.get_rank())


def another_order(folder):
    names = list(everything(folder))[::-1]
    assert streamed(folder, dict.fromkeys(names), order="plan") == names


def tensors_come_in_the_order_of_rank_0(folder):
    names = list(everything(folder))
    mine = names[dist.get_rank() :] + names[: dist.get_rank()]
    assert streamed(folder, mine, order="plan") == names
    assert streamed(folder, mine[::-1], order="plan") == names[::-1]


def files_that_one_rank_has_cached(folder):
    """The rank with cached files still shares the reads of the other ranks."""
    if dist.get_world_size() == 1:
        return
    path = source_of(folder) if dist.get_rank() == 0 else folder
    shared = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _exchange, "together", lambda *given, **options: shared.append(1) or together(*given, **options)
        )
        found = dict(stream_checkpoint(path, device="cpu", process_group=dist.group.WORLD))
    assert shared == [1]
    expected = everything(folder)
    assert all(is_equal(found[name], tensor) for name, tensor in expected.items())


def a_tensor_at_an_odd_place(folder):
    """Tensors are aligned to their element size, even if they are misaligned in the file."""
    odd = folder / f"odd-{dist.get_rank()}"
    source_of(odd).mkdir()
    data = {"byte": ("U8", 1, b"x"), "floats": ("F32", 1000, np.arange(1000, dtype="f4").tobytes())}
    header, end = {}, 0
    for name, (dtype, length, values) in data.items():
        header[name] = {"dtype": dtype, "shape": [length], "data_offsets": [end, end := end + len(values)]}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + b"".join(values for *_, values in data.values())
    (source_of(odd) / "model.safetensors").write_bytes(content)
    plan = ["floats"] if dist.get_rank() == 0 else ["byte"]
    for name, tensor in stream_checkpoint(odd, device="cpu", plan=plan, process_group=dist.group.WORLD):
        assert tensor.data_ptr() % tensor.itemsize == 0
        assert tensor.tolist() == (list(range(1000)) if name == "floats" else [ord("x")])


def a_subgroup(folder):
    """Hybrid sharding does this: each group of replicas loads for itself."""
    size = dist.get_world_size()
    if size < 2:
        return
    groups = [dist.new_group(list(range(first, size, 2))) for first in range(2)]
    mine = groups[dist.get_rank() % 2]
    found = dict(stream_checkpoint(folder, device="cpu", process_group=mine))
    expected = everything(folder)
    assert all(is_equal(found[name], expected[name]) for name in expected)


def a_cast(folder):
    stream = stream_checkpoint(folder, device="cpu", dtype=torch.float16, process_group=dist.group.WORLD)
    expected = everything(folder)
    for name, tensor in stream:
        is_cast = expected[name].is_floating_point() and expected[name].itemsize > 1
        wanted = expected[name].to(torch.float16) if is_cast else expected[name]
        assert is_equal(tensor, wanted), name


def by_storage_reader(folder, make, **options):
    """Loads a state with our reader and with torch's, and compares the results on each rank."""
    found, expected = make(), make()
    dcp.load(found, storage_reader=HuggingFaceStorageReader(folder, **options))
    dcp.load(expected, storage_reader=dcp.HuggingFaceStorageReader(str(source_of(folder))))
    assert list(found) == list(expected)
    for name, tensor in found.items():
        local, other = (
            each.to_local() if isinstance(each, DTensor) else each for each in (tensor, expected[name])
        )
        assert is_equal(local, other), name
        assert not isinstance(tensor, DTensor) or tensor.placements == expected[name].placements


def state_on(folder, mesh_shape, placements_of):
    """Returns a function that makes an empty state of DTensors, with the placements for each tensor."""
    mesh = init_device_mesh("cpu", mesh_shape)
    tensors = everything(folder)

    def make():
        return {
            name: distributed_empty(
                *tensor.shape, dtype=tensor.dtype, device_mesh=mesh, placements=placements_of(tensor)
            ).zero_()
            for name, tensor in tensors.items()
            if tensor.itemsize > 1 and tensor.numel()
        }

    return make


def sharded_by_storage_reader(folder):
    size = (dist.get_world_size(),)
    for placements_of in (
        lambda tensor: [Shard(0) if tensor.ndim else Replicate()],
        lambda tensor: [Shard(tensor.ndim - 1) if tensor.ndim else Replicate()],
        lambda _: [Replicate()],
    ):
        by_storage_reader(folder, state_on(folder, size, placements_of))


def two_dimensions_by_storage_reader(folder):
    half = dist.get_world_size() // 2
    if half < 2:
        return
    for rest in (Shard(1), Replicate()):
        by_storage_reader(
            folder,
            state_on(
                folder,
                (2, half),
                lambda tensor, rest=rest: [Shard(0), rest] if tensor.ndim > 1 else [Replicate(), Replicate()],
            ),
        )


class PairedPlanner(DefaultLoadPlanner):
    """Requires that each tensor is committed right after it was resolved, like Megatron's planner."""

    resolved = None

    def resolve_tensor(self, read_item):
        assert self.resolved is None, "two tensors at a time"
        self.resolved = read_item
        return super().resolve_tensor(read_item)

    def commit_tensor(self, read_item, tensor):
        assert self.resolved is read_item
        self.resolved = None
        super().commit_tensor(read_item, tensor)


def a_planner_with_one_tensor_at_a_time_by_storage_reader(folder):
    found = state_on(folder, (dist.get_world_size(),), lambda _: [Replicate()])()
    dcp.load(found, storage_reader=HuggingFaceStorageReader(folder), planner=PairedPlanner())
    expected = everything(folder)
    assert all(is_equal(tensor.to_local(), expected[name]) for name, tensor in found.items())


def alone_by_storage_reader(folder):
    make = state_on(
        folder, (dist.get_world_size(),), lambda tensor: [Shard(0) if tensor.ndim else Replicate()]
    )
    by_storage_reader(folder, make, read_once=False, thread_count=2)


def fully_sharded_by_storage_reader(folder):
    """FSDP2, as in torchtitan."""
    expected = everything(folder)

    def make():
        module = torch.nn.Module()
        for name, tensor in expected.items():
            if tensor.is_floating_point() and tensor.itemsize > 1 and tensor.numel():
                parameter = torch.nn.Parameter(torch.zeros_like(tensor.reshape(tensor.shape or (1,))))
                module.register_parameter(name.replace(".", "_"), parameter)
        fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        names = {name.replace(".", "_"): name for name in expected}
        return {names[name]: each for name, each in module.state_dict().items() if "scale" not in name}

    by_storage_reader(folder, make)


def quantised_by_storage_reader(folder):
    """Block-wise FP8, and MXFP4: whole tensors, and rows of them."""
    quantised = folder / "quantised"
    if dist.get_rank() == 0:
        write_quantised(source_of(quantised))
    dist.barrier()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def make(placement):
        shapes = {"a.weight": (300, 520), "b_blocks": (4, 40, 96)}
        return {
            name: distributed_empty(*shape, device_mesh=mesh, placements=[placement]).zero_()
            for name, shape in shapes.items()
        }

    for placement in (Shard(0), Shard(1), Replicate()):
        found, expected = make(placement), make(placement)
        dcp.load(found, storage_reader=QuantizedHuggingFaceStorageReader(quantised))
        dcp.load(expected, storage_reader=TorchQuantizedReader(str(source_of(quantised))))
        for name, tensor in found.items():
            assert is_equal(tensor.to_local(), expected[name].to_local()), (name, placement)
            assert tensor.to_local().abs().sum() > 0


def write_quantised(folder):
    folder.mkdir()
    torch.manual_seed(1)
    files = {
        "model-1.safetensors": {
            "a.weight": torch.randn(300, 520).to(torch.float8_e4m3fn),
            "b_blocks": torch.randint(0, 256, (4, 40, 3, 16), dtype=torch.uint8),
            "b_scales": torch.randint(120, 130, (4, 40, 3), dtype=torch.uint8),
        },
        # This scale is in another file than its weight.
        "model-2.safetensors": {"a.weight_scale_inv": torch.rand(3, 5)},
    }
    weight_map = {}
    for file, tensors in files.items():
        save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def parts_in_several_files_by_storage_reader(folder):
    """torch's writer puts the parts of each rank into a separate file."""
    saved = folder / "saved"
    make = state_on(
        folder, (dist.get_world_size(),), lambda tensor: [Shard(0) if tensor.ndim else Replicate()]
    )
    state = make()
    for number, tensor in enumerate(state.values()):
        tensor.fill_(number + 1)
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(str(source_of(saved)), save_distributed=True))
    (some, *_) = saved.rglob("*.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        begun = []
        patch.setattr(storage_readers, "joined", lambda group: begun.append(group) or joined(group))
        by_storage_reader(some.parent, make)
    assert len(begun) == len({*begun}) == 1, "files wait for one another"


def two_files_with_the_same_tensors_by_storage_reader(folder):
    twice = folder / "twice"
    if dist.get_rank() == 0:
        source_of(twice).mkdir()
        save_file({"a": torch.zeros(3), "b": torch.ones(4)}, source_of(twice) / "1.safetensors")
        save_file({"a": torch.full([3], 7.0), "c": torch.ones(2)}, source_of(twice) / "2.safetensors")
    dist.barrier()
    state = {"a": torch.empty(3), "b": torch.empty(4), "c": torch.empty(2)}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(twice))
    assert [each.tolist() for each in state.values()] == [[7.0] * 3, [1.0] * 4, [1.0] * 2]


def nothing_wanted_by_one_rank_by_storage_reader(folder):
    is_first = dist.get_rank() == 0
    state = {} if is_first else {"layers.0.norm": torch.zeros(77)}
    planner = DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder), planner=planner)
    assert is_first or is_equal(state["layers.0.norm"], everything(folder)["layers.0.norm"])


def a_rank_without_files_by_storage_reader(folder):
    """The mount of the last rank is still empty, and the planner accepts a partial load."""
    if dist.get_world_size() < 2:
        return
    empty = folder / "empty"
    if dist.get_rank() == 0:
        source_of(empty).mkdir()
    dist.barrier()
    mine = empty if dist.get_rank() == dist.get_world_size() - 1 else folder
    planner = DefaultLoadPlanner(allow_partial_load=True)
    state = {"layers.0.norm": torch.zeros(77)}
    with pytest.raises(CheckpointException, match=r"no \.safetensors files"):
        dcp.load(state, storage_reader=HuggingFaceStorageReader(mine), planner=planner)
    # If no rank has files, nothing is loaded. torch's reader does the same.
    dcp.load(state, storage_reader=HuggingFaceStorageReader(empty), planner=planner)
    assert not state["layers.0.norm"].any()


def cached_files_by_storage_reader(folder):
    """Each rank uses its own views of the page cache, which are copied once."""
    choose, view, viewed = streaming.chosen, weights._on_file, []

    def chosen(files, wanted, strategy, **options):
        # The kernel may have reclaimed pages, so this treats the files as cached in any case.
        return ("mapped", "as told") if strategy == "auto" else choose(files, wanted, strategy, **options)

    found = state_on(folder, (dist.get_world_size(),), lambda _: [Replicate()])()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "chosen", chosen)
        patch.setattr(weights, "_on_file", lambda *given: viewed.append(given[-1].info.name) or view(*given))
        dcp.load(found, storage_reader=HuggingFaceStorageReader(source_of(folder)))
    assert sorted(name.split("/", 1)[1] for name in viewed) == sorted(found)
    expected = everything(folder)
    assert all(is_equal(tensor.to_local(), expected[name]) for name, tensor in found.items())


def a_group_that_is_not_the_one_that_loads(folder):
    size = dist.get_world_size()
    if size < 4:
        return
    halves = [dist.new_group(list(range(first, size, 2))) for first in range(2)]
    expected = everything(folder)["layers.0.norm"]
    mine, other = halves[dist.get_rank() % 2], dist.group.WORLD

    def loaded(**options):
        state = {"layers.0.norm": torch.zeros(77)}
        dcp.load(state, storage_reader=HuggingFaceStorageReader(folder, **options), process_group=mine)
        return state["layers.0.norm"]

    with pytest.warns(UserWarning, match="each rank reads for itself: .* give the reader the process_group"):
        assert is_equal(loaded(), expected)
    with pytest.raises(CheckpointException, match="give the reader the process_group"):
        loaded(process_group=other)
    assert is_equal(loaded(process_group=mine), expected)


def failure(begin, told):
    """Makes the last rank fail in `begin`, and checks the errors of the other ranks."""
    is_failing = dist.get_rank() == dist.get_world_size() - 1
    with pytest.raises((RankError, OSError, KeyError, TypeError, ValueError, ZeroDivisionError)) as raised:
        begin(is_failing)
    error = raised.value
    assert isinstance(error, RankError) != is_failing
    assert is_failing or error.rank == dist.get_world_size() - 1
    assert told in f"{type(error).__name__}: {error}"
    # The failure leaves the group usable.
    dist.barrier()


def a_rank_without_files(folder):
    def begin(is_failing):
        path = "/nowhere" if is_failing else folder
        dict(stream_checkpoint(path, device="cpu", process_group=dist.group.WORLD))

    failure(begin, "FileNotFoundError")


def a_bad_argument(folder):
    def begin(is_failing):
        plan = ["nobody"] if is_failing else None
        dict(stream_checkpoint(folder, device="cpu", plan=plan, process_group=dist.group.WORLD))

    failure(begin, "nobody")

    def begin_with_progress(is_failing):
        options = {"process_group": dist.group.WORLD, "progress": 5 if is_failing else False}
        dict(stream_checkpoint(folder, device="cpu", **options))

    failure(begin_with_progress, "progress must be")


def a_rank_with_fake_tensors(folder):
    """A rank with fake tensors has no bytes to share."""

    def begin(is_failing):
        with FakeTensorMode() if is_failing else nullcontext():
            load_state_dict(folder, process_group=dist.group.WORLD)

    failure(begin, "under a FakeTensorMode there are no reads to share")


def a_consumer_that_fails(folder):
    def begin(is_failing):
        stream = stream_checkpoint(folder, device="cpu", memory_bytes=1 << 20, process_group=dist.group.WORLD)
        for _ in stream:
            if is_failing:
                # Dropping the generator closes it.
                del stream
                raise ZeroDivisionError
        assert not is_failing

    is_failing = dist.get_rank() == dist.get_world_size() - 1
    failure(begin, "ZeroDivisionError" if is_failing else "left before the end of the load")


def a_consumer_that_fails_where_the_stream_is_closed(folder):
    def begin(is_failing):
        stream = stream_checkpoint(folder, device="cpu", memory_bytes=1 << 20, process_group=dist.group.WORLD)
        with closing(stream):
            for _ in stream:
                if is_failing:
                    raise ZeroDivisionError
        assert not is_failing

    failure(begin, "ZeroDivisionError")


def a_consumer_that_fails_where_nobody_needs_it(folder):
    """All tensors fit in one round, or each rank reads for itself."""
    names = list(everything(folder))
    of_rank = names[dist.get_rank() :: dist.get_world_size()]
    for path, plan in ((folder, names), (source_of(folder), names), (folder, of_rank)):

        def begin(is_failing, path=path, plan=plan):
            stream = stream_checkpoint(path, device="cpu", plan=plan, process_group=dist.group.WORLD)
            with closing(stream):
                for _ in stream:
                    if is_failing:
                        raise ZeroDivisionError

        failure(begin, "ZeroDivisionError")


def a_failure_is_heard_between_tensors_of_a_ranks_own(folder):
    """A rank that needs no shared bytes notices a failure before it has loaded all of its tensors."""
    names = [name for name, tensor in everything(folder).items() if tensor.numel()]
    of_rank, seen = names[dist.get_rank() :: dist.get_world_size()], []

    def begin(is_failing):
        stream = stream_checkpoint(folder, device="cpu", plan=of_rank, process_group=dist.group.WORLD)
        with closing(stream):
            for name, _ in stream:
                if is_failing:
                    raise ZeroDivisionError
                seen.append(name)
                wait_until(lambda: any(each._beats.failure for each in _meeting._open))

    failure(begin, "ZeroDivisionError")
    assert len(seen) <= 1


def a_file_that_is_rewritten_meanwhile(folder):
    """At the end, each rank checks the file, even if its bytes were in the page cache."""
    changed = source_of(folder) / f"changed-{dist.get_world_size()}"
    for path in (folder / changed.name, changed):
        if dist.get_rank() == 0:
            changed.mkdir(exist_ok=True)
            save_file({"a": torch.zeros(10), "b": torch.ones(10)}, changed / "model.safetensors")
        dist.barrier()
        stream = stream_checkpoint(path, device="cpu", process_group=dist.group.WORLD)
        assert [name for name, _ in islice(stream, 2)] == ["a", "b"]
        dist.barrier()
        if dist.get_rank() == 0:
            os.utime(changed / "model.safetensors", ns=(1, 1))
        dist.barrier()
        with pytest.raises((FileChangedError, RankError), match=r"model\.safetensors"):
            next(stream)
        dist.barrier()


def a_group_that_is_destroyed_meanwhile(folder):
    group = dist.new_group()
    stream = stream_checkpoint(folder, device="cpu", process_group=group)
    assert len([next(stream)]) == 1
    dist.barrier()
    dist.destroy_process_group(group)
    stream.close()
    assert not _meeting._loading


def a_refused_load(folder):
    """A single rank is refused a second load. Later loads of all ranks still work."""
    stream = stream_checkpoint(folder, device="cpu", process_group=dist.group.WORLD)
    first = [next(stream)]
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match="another load of this process uses the group"):
            load_state_dict(folder, process_group=dist.group.WORLD)
    assert [name for name, _ in [*first, *stream]] == list(everything(folder))
    load_state_dict(folder, process_group=dist.group.WORLD)


def a_time_out_of_a_group_of_its_own(folder):
    group = dist.new_group(timeout=timedelta(seconds=77))
    with joined(group) as meeting, meeting:
        assert meeting._patience_seconds == 77
        meeting.meet()
    with joined(dist.group.WORLD) as meeting, meeting:
        assert meeting._patience_seconds == 1800
        meeting.meet()


def a_stream_that_nobody_begins(folder):
    def begin(is_failing):
        stream = stream_checkpoint(folder, device="cpu", process_group=dist.group.WORLD)
        if is_failing:
            del stream
            raise ZeroDivisionError
        dict(stream)

    is_failing = dist.get_rank() == dist.get_world_size() - 1
    failure(begin, "ZeroDivisionError" if is_failing else "left before the end of the load")


def a_rank_that_needs_no_more(folder):
    """The first rank leaves after its last tensor, without requesting another one."""
    names = list(everything(folder))
    stream = stream_checkpoint(folder, device="cpu", process_group=dist.group.WORLD)
    is_first = dist.get_rank() == 0
    found = [name for name, _ in (islice(stream, len(names)) if is_first else stream)]
    stream.close()
    assert found == names


def a_rank_that_wants_little_and_leaves_with_it(folder):
    """The first of many rounds has all tensors that this rank wants, but later rounds need the rank."""
    names = list(everything(folder))
    wants_little = dist.get_rank() == dist.get_world_size() - 1
    plan = names[:2] if wants_little else names
    options = {"plan": plan, "memory_bytes": 1 << 20, "process_group": dist.group.WORLD}
    with closing(stream_checkpoint(folder, device="cpu", **options)) as stream:
        assert [name for name, _ in (islice(stream, 2) if wants_little else stream)] == plan


def another_checkpoint(folder):
    """The last rank's tensor has another shape."""
    if dist.get_world_size() < 2:
        return
    other = folder / f"other-{dist.get_rank()}"
    source_of(other).mkdir()
    is_odd = dist.get_rank() == dist.get_world_size() - 1
    save_file({"t": torch.zeros(3 + is_odd)}, source_of(other) / "model.safetensors")
    # The first rank that detects this tells all ranks.
    with pytest.raises(
        (ValueError, RankError), match=f"rank {dist.get_world_size() - 1} has a different checkpoint"
    ):
        dict(stream_checkpoint(other, device="cpu", process_group=dist.group.WORLD))
    dist.barrier()


def copies_of_a_checkpoint(folder):
    """Each rank has its own copy with a different time. Then one copy has different bytes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    own = folder / f"copy-{rank}"
    source_of(own).mkdir()
    path = source_of(own) / "model.safetensors"
    save_file({"t": torch.arange(3000), "one": torch.ones(1), "none": torch.ones(0)}, path)
    os.utime(path, ns=(1, 10**18 + rank))
    found = dict(stream_checkpoint(own, device="cpu", process_group=dist.group.WORLD))
    assert torch.equal(found["t"], torch.arange(3000))
    save_file({"t": torch.arange(3000) + (rank == size - 1), "one": torch.ones(1)}, path)
    # The time of the last rank's copy differs by one nanosecond.
    os.utime(path, ns=(1, 10**18 + (rank == size - 1)))
    if size > 1:
        with pytest.raises((ValueError, RankError), match=f"and {size - 1} have different checkpoints: 't'"):
            dict(stream_checkpoint(own, device="cpu", process_group=dist.group.WORLD))
        # If the ranks want different tensors, their copies do not mix.
        plan = ["t"] if rank == 0 else ["one"]
        assert (
            list(dict(stream_checkpoint(own, device="cpu", plan=plan, process_group=dist.group.WORLD)))
            == plan
        )


def a_progress_that_fails(folder):
    def failing(done_bytes, total_bytes):
        raise ZeroDivisionError(done_bytes, total_bytes)

    def begin(is_failing):
        progress = failing if is_failing else False
        options = {"process_group": dist.group.WORLD, "memory_bytes": 1 << 20, "progress": progress}
        dict(stream_checkpoint(folder, device="cpu", **options))

    failure(begin, "ZeroDivisionError")


def two_loads_at_once(folder):
    stream = stream_checkpoint(folder, device="cpu", process_group=dist.group.WORLD)
    first = [next(stream)]
    with pytest.raises((RuntimeError, RankError), match="another load of this process uses the group"):
        load_state_dict(folder, process_group=dist.group.WORLD)
    # The first load is unaffected, and once it ends, the group is free.
    assert [name for name, _ in [*first, *stream]] == list(everything(folder))
    load_state_dict(folder, process_group=dist.group.WORLD)


def nothing_stays_in_the_store(folder):
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    count = len(load_state_dict(folder, process_group=dist.group.WORLD))
    dist.barrier()
    before = store.num_keys()
    dist.barrier()
    for waiting in (0, 1, None):
        load_state_dict(folder, process_group=dist.group.WORLD)
        dict(stream_checkpoint(folder, device="cpu", process_group=dist.group.WORLD))
        # If each rank reads for itself and leaves with its last tensor, the ranks meet nowhere else.
        with closing(
            stream_checkpoint(source_of(folder), device="cpu", process_group=dist.group.WORLD)
        ) as stream:
            # One rank waits for the other ranks.
            assert len(list(islice(stream, count + (dist.get_rank() == waiting)))) == count
    dist.barrier()
    after = store.num_keys()
    dist.barrier()
    assert after == before, (before, after)


def connections_to_the_store_are_kept_as_long_as_the_group(folder):
    """For a new connection, torch queries a name server, which may take seconds to answer."""
    group = dist.new_group()
    store = dist.distributed_c10d._get_process_group_store(group)
    used = []
    for _ in range(2):
        load_state_dict(folder, process_group=group)
        wait_for_threads("pagestream-store")
        used.append(set(_store._idle[store]))
    assert len(used[0]) == 2
    assert used[0] == used[1]
    kept = [weakref.ref(each) for each in used[0]]
    dist.destroy_process_group(group)
    del store, group, used
    gc.collect()
    assert [each() for each in kept] == [None] * 2


def wait_until(has_happened):
    deadline = time.monotonic() + 600
    while not has_happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_threads(name):
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()


def a_plan_of_many_tensors(folder):
    """The store takes 8 MiB at a time. The last rank's message exceeds that, even when compressed."""
    del folder
    is_last = dist.get_rank() == dist.get_world_size() - 1
    letters = np.random.default_rng(dist.get_rank()).integers(0, 128, 10 << 20 if is_last else 100, "u1")
    words = letters.tobytes().decode("ascii")
    with joined(dist.group.WORLD) as meeting:
        found = meeting.gather("plan", words)
        assert found[meeting.rank] == words
        assert [len(each) for each in found] == [100] * (meeting.size - 1) + [10 << 20]
        assert len({*found}) == meeting.size
        meeting.meet()
        assert not meeting._look([f"plan/{meeting.rank}"]), "the store keeps what all have heard"
    with meeting:
        pass


def messages_that_are_not_valid(folder):
    """The last rank sends these messages: one that grows when unpacked, and several broken ones."""
    last = dist.get_world_size() - 1
    messages = {
        zlib.compress(bytes(3 << 20)): "it has more than 1048576 bytes when unpacked",
        random.Random(0).randbytes(3 << 20): "it has 3 pieces",
        b"no zlib": "incorrect header check",
        zlib.compress(b"mapped")[:-1]: "its end is missing",
        zlib.compress(b"\xff"): "invalid start byte",
    }
    for message, told in messages.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_meeting, "MOST_SAID_BYTES", 1 << 20)
            patch.setattr(_meeting, "MESSAGE_BYTES", 1 << 20)
            if dist.get_rank() == last:
                patch.setattr(zlib, "compress", lambda _, message=message: message)
            with pytest.raises(RankError, match=f"its message 'means' is not valid: .*{told}") as raised:
                load_state_dict(folder, process_group=dist.group.WORLD)
            assert raised.value.rank == last
            dist.barrier()


def a_rank_with_too_much_to_say(folder):
    def begin(is_failing):
        with pytest.MonkeyPatch.context() as patch:
            if is_failing:
                patch.setattr(_meeting, "MOST_SAID_BYTES", 100)
            load_state_dict(folder, process_group=dist.group.WORLD)

    failure(begin, "bytes, and the limit is 100; load the checkpoint in several plans")


def module_on_meta(expected):
    """Returns a module on `meta`, and its names for the tensors."""
    names = {name: name.replace(".", "_") for name in expected}
    module = torch.nn.Module()
    with torch.device("meta"):
        for name, tensor in expected.items():
            kind = torch.nn.Parameter(torch.empty_like(tensor, device="meta"), requires_grad=False)
            module.register_parameter(names[name], kind)
    return module, names


def a_module_of_cached_files(folder):
    """The module gets its own memory, independent of the files."""
    expected = everything(folder)
    module, names = module_on_meta(expected)
    load_into(module, source_of(folder), rename=names, process_group=dist.group.WORLD)
    mapped = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(".safetensors")
    ]
    assert mapped, "the tensors to compare with are mapped"
    for name, tensor in expected.items():
        found = getattr(module, names[name]).data
        assert is_equal(found, tensor)
        assert not any(start <= found.data_ptr() < end for start, end in mapped), name


def a_module_that_fails(folder):
    """The other ranks receive the reason, even if each rank reads for itself."""
    for path in (folder, source_of(folder)):
        module, names = module_on_meta(everything(folder))

        def begin(is_failing, path=path, module=module, names=names):
            with pytest.MonkeyPatch.context() as patch:
                if is_failing:
                    patch.setattr(modules._Target, "put", lambda *_, **__: 1 // 0)
                load_into(module, path, rename=names, process_group=dist.group.WORLD)

        failure(begin, "ZeroDivisionError")


def a_rank_without_a_module(folder):
    module, names = module_on_meta(everything(folder))

    def begin(is_failing):
        load_into("nothing" if is_failing else module, folder, rename=names, process_group=dist.group.WORLD)

    failure(begin, "module must be a torch.nn.Module")


def a_slow_rank(folder):
    """Rank 0 keeps sending beats while its program takes its time."""
    stream = stream_checkpoint(folder, device="cpu", memory_bytes=1 << 20, process_group=dist.group.WORLD)
    for number, _ in enumerate(stream):
        if number == 2 and dist.get_rank() == 0:
            (meeting,) = _meeting._open
            last = meeting._beats.number + 3
            wait_until(lambda: meeting._beats.number >= last)  # noqa: B023 - called here


def a_module(folder):
    expected = everything(folder)
    module = torch.nn.Module()
    for name, tensor in expected.items():
        kind = torch.nn.Parameter(torch.empty_like(tensor), requires_grad=False)
        module.register_parameter(name.replace(".", "_"), kind)
    rename = {name: name.replace(".", "_") for name in expected}
    report = load_into(module, folder, rename=rename, process_group=dist.group.WORLD)
    assert (report.missing, report.unexpected) == ([], [])
    for name, tensor in expected.items():
        assert is_equal(getattr(module, rename[name]).data, tensor)


def a_state_dict(folder):
    found = load_state_dict(folder, process_group=dist.group.WORLD)
    expected = everything(folder)
    assert list(found) == list(load_state_dict(folder))
    assert all(is_equal(found[name], tensor) for name, tensor in expected.items())
    # This tensor comes first for rank 0.
    plan = list(found)[-1:] if dist.get_rank() == 0 else list(found)
    assert list(load_state_dict(folder, plan=plan, process_group=dist.group.WORLD)) == plan


def checkpoints_that_are_open(folder):
    """Some ranks open the files through another path and in another mode. The last rank passes the path."""
    rank, size = dist.get_rank(), dist.get_world_size()
    expected = everything(folder)
    linked = folder / f"linked-{rank}"
    source_of(linked).mkdir()
    for path in source_of(folder).glob("*.safetensors"):
        (source_of(linked) / path.name).symlink_to(f"../{path.name}")
    with (
        open_checkpoint(os.path.relpath(linked), cache_root=folder, mmap_mode="read") as checkpoint,
        chdir("/"),
    ):
        given = folder if 0 < rank == size - 1 else checkpoint
        found = load_state_dict(given, process_group=dist.group.WORLD)
        assert all(is_equal(found[name], tensor) for name, tensor in expected.items())
        assert np.array_equal(checkpoint["layers.0.norm"], expected["layers.0.norm"].numpy())
    # A closed checkpoint on one rank is an error on all ranks.
    with pytest.raises((ValueError, RankError), match="closed"):
        load_state_dict(checkpoint if rank == 0 else folder, process_group=dist.group.WORLD)
    dist.barrier()


CHECKS = {
    each.__name__.replace("_", " "): each
    for each in (
        the_same_for_all,
        rows,
        columns,
        rows_in_turn,
        other_parts_on_each_rank,
        some_tensors_on_each_rank,
        little_memory,
        rows_and_whole_tensors_with_little_memory,
        tensors_that_are_not_shared_come_without_waiting,
        another_memory_on_each_rank,
        another_order,
        tensors_come_in_the_order_of_rank_0,
        files_that_one_rank_has_cached,
        a_tensor_at_an_odd_place,
        a_subgroup,
        a_cast,
        a_module,
        a_state_dict,
        checkpoints_that_are_open,
        sharded_by_storage_reader,
        two_dimensions_by_storage_reader,
        alone_by_storage_reader,
        a_planner_with_one_tensor_at_a_time_by_storage_reader,
        fully_sharded_by_storage_reader,
        quantised_by_storage_reader,
        parts_in_several_files_by_storage_reader,
        two_files_with_the_same_tensors_by_storage_reader,
        nothing_wanted_by_one_rank_by_storage_reader,
        a_rank_without_files_by_storage_reader,
        cached_files_by_storage_reader,
        a_group_that_is_not_the_one_that_loads,
        a_rank_without_files,
        a_bad_argument,
        a_rank_with_fake_tensors,
        a_consumer_that_fails,
        a_consumer_that_fails_where_the_stream_is_closed,
        a_consumer_that_fails_where_nobody_needs_it,
        a_failure_is_heard_between_tensors_of_a_ranks_own,
        a_file_that_is_rewritten_meanwhile,
        a_group_that_is_destroyed_meanwhile,
        a_refused_load,
        a_time_out_of_a_group_of_its_own,
        a_stream_that_nobody_begins,
        a_rank_that_needs_no_more,
        a_rank_that_wants_little_and_leaves_with_it,
        another_checkpoint,
        copies_of_a_checkpoint,
        a_progress_that_fails,
        two_loads_at_once,
        nothing_stays_in_the_store,
        connections_to_the_store_are_kept_as_long_as_the_group,
        a_plan_of_many_tensors,
        messages_that_are_not_valid,
        a_rank_with_too_much_to_say,
        a_module_of_cached_files,
        a_module_that_fails,
        a_rank_without_a_module,
        a_slow_rank,
    )
}


def main():
    results = Path(sys.argv[1])
    folder = results / "mount"
    # Ranks must learn about each other's failures from messages, not from silence.
    _meeting.SILENT_SECONDS = 10_000.0
    dist.init_process_group("gloo")
    with (results / f"{dist.get_rank()}").open("w") as file:
        for name, check in CHECKS.items():
            failed, begun = None, time.monotonic()
            try:
                check(folder)
            except BaseException:  # noqa: BLE001 - any exception is a result
                failed = traceback.format_exc()
            seconds = time.monotonic() - begun
            print(json.dumps({"check": name, "failed": failed, "seconds": seconds}), file=file, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
