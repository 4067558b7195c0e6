"""Checkpoints of random bfloat16 matrices in shards."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch.distributed.checkpoint._hf_utils import CUSTOM_METADATA_KEY, SAVED_OFFSETS_KEY


def written(
    folder: Path, *, shards: int, tensors: int, shape: tuple[int, int], also_pickled: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    """Writes shards of `tensors` matrices each, and yields the bits of each matrix.

    With `also_pickled`, also writes them with `torch.save`.
    """
    folder.mkdir()
    generator = np.random.default_rng(0)
    for shard in range(shards):
        found = {}
        for number in range(shard * tensors, (shard + 1) * tensors):
            array = generator.integers(0, 1 << 16, shape, dtype=np.uint16)
            found[f"model.layers.{number}.weight"] = torch.from_numpy(array).view(torch.bfloat16)
            yield f"model.layers.{number}.weight", array
        stem = folder / f"model-{shard + 1:05}-of-{shards:05}"
        safetensors.torch.save_file(found, stem.with_suffix(".safetensors"))
        if also_pickled:
            torch.save(found, stem.with_suffix(".pt"))


def write_parts(source: Path, folder: Path, writers: int) -> None:
    """Writes the rows of each matrix of a checkpoint to this many files, as torch's ranks do."""
    folder.mkdir()
    found = {}
    for path in source.glob("*.safetensors"):
        found |= safetensors.torch.load_file(path)
    for writer in range(writers):
        parts, places = {}, {}
        for name, tensor in found.items():
            rows = tensor.shape[0] // writers
            parts[name] = tensor[writer * rows : (writer + 1) * rows].contiguous()
            places[name] = {SAVED_OFFSETS_KEY: [writer * rows, 0]}
        told = {CUSTOM_METADATA_KEY: json.dumps(places)}
        path = folder / f"shard-{writer + 1:05}-model-00001-of-00001.safetensors"
        safetensors.torch.save_file(parts, path, metadata=told)
