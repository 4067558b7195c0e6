"""The readers for ``torch.distributed.checkpoint.load`` in one process; `test_torch_ranks` uses several."""

from __future__ import annotations

import io
import json
import os

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.quantized_hf_storage import (
    QuantizedHuggingFaceStorageReader as TorchQuantizedReader,
)

from pagestream import open_checkpoint
from pagestream.errors import FileChangedError, SafetensorError
from pagestream.torch import HuggingFaceStorageReader, QuantizedHuggingFaceStorageReader, storage_readers

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

BLOCK, WEIGHTS, SHAPE = 128, 32, (512, 640)


class Watched(QuantizedHuggingFaceStorageReader):
    """Records the most bytes that wait for the other part of their tensor."""

    most_bytes = 0

    def _take(self, item, each, tensor, planner):
        super()._take(item, each, tensor, planner)
        waiting = sum(part.nbytes for held in self._held.values() for part in held.values())
        self.most_bytes = max(self.most_bytes, waiting)


def scales_in(file, folder):
    """Writes FP8 weights. Their scales are in another file, or behind all weights in the same file."""
    torch.manual_seed(2)
    weights = {f"{number:02}.weight": torch.randn(SHAPE).to(torch.float8_e4m3fn) for number in range(WEIGHTS)}
    grid = [-(-length // BLOCK) for length in SHAPE]
    scales = {f"{name}_scale_inv": torch.rand(grid) + 0.5 for name in weights}
    files = {"1.safetensors": weights}
    files[file] = files.get(file, {}) | scales
    for name, tensors in files.items():
        save_file(tensors, folder / name)
    weight_map = {tensor: name for name, tensors in files.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("file", ["0.safetensors", "1.safetensors", "2.safetensors"])
def test_no_more_than_one_weight_waits_for_its_scale(tmp_path, file):
    scales_in(file, tmp_path)
    found, expected = (
        {f"{number:02}.weight": torch.zeros(SHAPE) for number in range(WEIGHTS)} for _ in range(2)
    )
    reader = Watched(tmp_path, memory_bytes=1 << 20)
    dcp.load(found, storage_reader=reader, no_dist=True)
    dcp.load(expected, storage_reader=TorchQuantizedReader(str(tmp_path)), no_dist=True)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    assert 0 < reader.most_bytes <= SHAPE[0] * SHAPE[1]


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("{}", "KeyError('w')"),
        ('{"w": {}}', "KeyError('saved_offsets')"),
        ('{"w": {"saved_offsets": [0]}}', "saved_offsets [0] for 2 dimensions"),
        ('{"w": {"saved_offsets": [0, -1]}}', "saved_offsets [0, -1] for 2 dimensions"),
        ('{"w": {"saved_offsets": ["a", 0]}}', "TypeError"),
        ('{"w": {"saved_offsets": 3}}', "TypeError"),
    ],
)
def test_bad_places_of_shards_are_named_with_their_file(tmp_path, told, found):
    path = tmp_path / "shard.safetensors"
    save_file({"w": torch.ones(2, 3)}, path, metadata={"DCP_SHARDING_INFO": told})
    with pytest.raises(SafetensorError) as caught:
        HuggingFaceStorageReader(tmp_path).read_metadata()
    assert f"{path}: 'DCP_SHARDING_INFO' of the metadata does not say where tensor 'w' lies" in str(
        caught.value
    )
    assert found in str(caught.value)


def test_places_of_shards_are_those_of_the_metadata(tmp_path):
    for number, rows in enumerate((2, 1)):
        told = json.dumps({"w": {"saved_offsets": [2 * number, 0]}})
        save_file(
            {"w": torch.full((rows, 3), float(number))},
            tmp_path / f"shard-{number}.safetensors",
            metadata={"DCP_SHARDING_INFO": told},
        )
    found = HuggingFaceStorageReader(tmp_path).read_metadata().state_dict_metadata["w"]
    assert found.size == torch.Size([3, 3])
    assert [(chunk.offsets, chunk.sizes) for chunk in found.chunks] == [
        (torch.Size([0, 0]), torch.Size([2, 3])),
        (torch.Size([2, 0]), torch.Size([1, 3])),
    ]


COUNT = 12


def write(folder, first=0):
    """Writes a file of small tensors with consecutive numbers, starting at `first`."""
    folder.mkdir(exist_ok=True)
    tensors = {f"t{number:02}": torch.full((4, 5), float(first + number)) for number in range(COUNT)}
    save_file(tensors, folder / "model.safetensors")
    return folder


def empty_state(names=None):
    return {name: torch.zeros(4, 5) for name in names or [f"t{number:02}" for number in range(COUNT)]}


def values(state):
    return [float(tensor[0, 0]) for tensor in state.values()]


def planned(reader, state):
    """Makes a planner and a plan, as `torch.distributed.checkpoint.load` does."""
    planner = DefaultLoadPlanner()
    planner.set_up_planner(state, reader.read_metadata(), is_coordinator=True)
    return planner, planner.create_local_plan()


class Noting(HuggingFaceStorageReader):
    """Records the order of tensors, and calls a function before it copies the last one."""

    def __init__(self, *arguments, at_last=lambda: None, **options):
        super().__init__(*arguments, **options)
        self.came, self._at_last = [], at_last

    def _take(self, item, each, tensor, planner):
        self.came.append(each.info.name)
        if len(self.came) == COUNT:
            self._at_last()
        super()._take(item, each, tensor, planner)


def test_tensors_are_read_in_the_order_of_the_file_whatever_that_of_the_state(tmp_path):
    reader, state = Noting(write(tmp_path)), empty_state([f"t{number:02}" for number in range(COUNT)][::-1])
    # `load` sorts the names.
    planner, plan = planned(reader, state)
    assert [item.storage_index.fqn for item in plan.items] == list(state)
    reader.read_data(plan, planner)
    assert values(state) == list(range(COUNT))[::-1]
    assert reader.came == [f"0/t{number:02}" for number in range(COUNT)]


def test_a_file_that_is_rewritten_meanwhile_is_no_mix_of_old_and_new(tmp_path):
    other = write(tmp_path / "other", first=100) / "model.safetensors"
    path = write(tmp_path / "weights") / "model.safetensors"

    def rewrite():
        path.write_bytes(other.read_bytes())
        os.utime(path, ns=(0, 0))

    reader = Noting(path.parent, at_last=rewrite)
    planner, plan = planned(reader, empty_state())
    with pytest.raises(FileChangedError, match=r"model\.safetensors"):
        reader.read_data(plan, planner)


def test_bytes_that_are_no_tensor_are_refused_by_name(tmp_path):
    reader = HuggingFaceStorageReader(write(tmp_path))
    planner, _ = planned(reader, empty_state())
    at, nowhere = MetadataIndex("t00"), torch.Size([0])
    item = ReadItem(LoadItemType.BYTE_IO, at, nowhere, at, nowhere, nowhere)
    with pytest.raises(SafetensorError, match="'t00' is not a tensor: safetensors files store only"):
        reader.read_data(LoadPlan([item]), planner)


def test_a_planner_that_wants_another_shape_is_refused_by_name(tmp_path):
    class Narrow(DefaultLoadPlanner):
        def resolve_tensor(self, read_item):
            return super().resolve_tensor(read_item)[:1]

    reader, planner = HuggingFaceStorageReader(write(tmp_path)), Narrow()
    planner.set_up_planner(empty_state(), reader.read_metadata(), is_coordinator=True)
    with pytest.raises(ValueError, match=r"'t00': .* has shape \[4, 5\], but .* has shape \[1, 5\]"):
        reader.read_data(planner.create_local_plan(), planner)


def test_a_plan_from_the_metadata_of_another_reader_is_read(tmp_path):
    """One rank may read the metadata for all, and a reader may switch to another folder."""
    first, second = write(tmp_path / "first"), write(tmp_path / "second", first=100)
    state = empty_state()
    planner, plan = planned(HuggingFaceStorageReader(first), state)
    reader = HuggingFaceStorageReader(first)
    reader.read_data(plan, planner)
    assert values(state) == list(range(COUNT))
    reader.reset(second)
    reader.read_data(plan, planner)
    assert values(state) == list(range(100, 100 + COUNT))
    (tmp_path / "empty").mkdir()
    reader.reset(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="plan reads 12 parts of tensors") as caught:
        reader.read_data(plan, planner)
    assert caught.value.filename == str(tmp_path / "empty")


def test_an_open_checkpoint_is_read_until_the_reader_goes_on_to_a_folder(tmp_path):
    first, second = write(tmp_path / "first"), write(tmp_path / "second", first=100)
    state = empty_state()
    with open_checkpoint(first) as checkpoint:
        reader = HuggingFaceStorageReader(checkpoint)
        for _ in range(2):
            dcp.load(state, storage_reader=reader, no_dist=True)
            assert values(state) == list(range(COUNT))
        dcp.load(state, checkpoint_id=second, storage_reader=reader, no_dist=True)
        assert values(state) == list(range(100, 100 + COUNT))
        assert not checkpoint.closed


def test_a_checkpoint_that_was_closed_is_an_error(tmp_path):
    checkpoint = open_checkpoint(write(tmp_path))
    reader = HuggingFaceStorageReader(checkpoint)
    checkpoint.close()
    planner, plan = planned(reader, empty_state())
    with pytest.raises(ValueError, match="closed"):
        reader.read_data(plan, planner)


@pytest.mark.parametrize("by", ["folder", "checkpoint"])
def test_weights_and_scales_are_paired_without_an_index(tmp_path, by):
    scales_in("2.safetensors", tmp_path)
    names = [f"{number:02}.weight" for number in range(WEIGHTS)]
    found, expected = ({name: torch.zeros(SHAPE) for name in names} for _ in range(2))
    dcp.load(expected, storage_reader=TorchQuantizedReader(str(tmp_path)), no_dist=True)
    (tmp_path / "model.safetensors.index.json").unlink()
    given = tmp_path if by == "folder" else open_checkpoint(tmp_path)
    dcp.load(found, storage_reader=QuantizedHuggingFaceStorageReader(given), no_dist=True)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_budget_and_threads_reach_the_stream(tmp_path, monkeypatch):
    seen, begin = [], storage_readers.tensors_on
    monkeypatch.setattr(
        storage_readers, "tensors_on", lambda *a, **options: seen.append(options) or begin(*a, **options)
    )
    state = empty_state()
    reader = HuggingFaceStorageReader(write(tmp_path), thread_count=3, memory_bytes=5 << 20)
    dcp.load(state, storage_reader=reader, no_dist=True)
    assert [(each["threads"], each["memory_bytes"]) for each in seen] == [(3, 5 << 20)]


class Failing(QuantizedHuggingFaceStorageReader):
    """Fails between the two parts of a tensor."""

    def _take(self, item, each, tensor, planner):
        super()._take(item, each, tensor, planner)
        raise io.UnsupportedOperation


def test_the_data_of_a_failed_load_is_forgotten(tmp_path):
    scales_in("2.safetensors", tmp_path)
    reader = Failing(tmp_path)
    planner, plan = planned(reader, {f"{number:02}.weight": torch.zeros(SHAPE) for number in range(WEIGHTS)})
    with pytest.raises(io.UnsupportedOperation):
        reader.read_data(plan, planner)
    assert reader._held
    reader.read_metadata()
    assert not reader._held
