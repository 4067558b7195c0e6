"""Checkpoints of random bfloat16 matrices in shards."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors.torch
import torch


def written(
    folder: Path, *, shards: int, tensors: int, shape: tuple[int, int], also_pickled: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    """Writes shards of `tensors` matrices each, and yields the bits of each matrix.

    `also_pickled` writes them as `torch.save` does, too.
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
