"""The readers for ``torch.distributed.checkpoint.load`` in one process; `test_torch_ranks` has several."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.quantized_hf_storage import (
    QuantizedHuggingFaceStorageReader as TorchQuantizedReader,
)

from pagestream.errors import SafetensorError
from pagestream.torch import HuggingFaceStorageReader, QuantizedHuggingFaceStorageReader

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

BLOCK, WEIGHTS, SHAPE = 128, 32, (512, 640)


class Watched(QuantizedHuggingFaceStorageReader):
    """Notes the most bytes that wait for the other part of their tensor."""

    most_bytes = 0

    def _take(self, item, each, tensor, planner):
        super()._take(item, each, tensor, planner)
        waiting = sum(part.nbytes for held in self._held.values() for part in held.values())
        self.most_bytes = max(self.most_bytes, waiting)


def scales_in(file, folder):
    """FP8 weights, and their scales in another file or behind all of them."""
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
