"""Loads a rank's part of each matrix of the safetensors files of a folder, and prints the costs.

    slice_weights.py WAY FOLDER DIMENSION

Prints JSON in the form of `load_weights.py`. The ranks of a model that is split along the dimension have
equal parts.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from load_weights import Loaded, installed, report, shards
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

RANK, RANKS = 3, 8


def part(shape: tuple[int, ...], dimension: int) -> tuple[slice, ...]:
    """Returns the rank's part of a tensor."""
    extent = shape[dimension] // RANKS
    whole = [slice(0, each) for each in shape]
    whole[dimension] = slice(RANK * extent, (RANK + 1) * extent)
    return tuple(whole)


def stream(folder: Path, dimension: int) -> Loaded:
    from pagestream import open_checkpoint

    yield from open_checkpoint(folder).stream(lambda info: part(info.shape, dimension))


def by_get_slice(folder: Path, dimension: int, **options: str) -> Loaded:
    import safetensors

    for path in shards(folder):
        with safetensors.safe_open(path, "pt", **options) as file:
            for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                tensor = file.get_slice(name)
                yield name, tensor[part(tuple(tensor.get_shape()), dimension)]


class RanksPlanner(dcp.DefaultLoadPlanner):
    """Requests the rank's part of each tensor like a DTensor, which would need a process group."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items = []
        for name, found in self.metadata.state_dict_metadata.items():
            assert isinstance(found, TensorStorageMetadata)
            index = part(tuple(found.size), self.dimension)
            items.append(
                ReadItem(
                    type=LoadItemType.TENSOR,
                    dest_index=MetadataIndex(name),
                    dest_offsets=torch.Size([0] * len(index)),
                    storage_index=MetadataIndex(name, torch.Size([0] * len(index))),
                    storage_offsets=torch.Size(each.start for each in index),
                    lengths=torch.Size(each.stop - each.start for each in index),
                )
            )
        return LoadPlan(items)


def by_torchs_reader(folder: Path, dimension: int, *, threads: int) -> Loaded:
    reader = dcp.HuggingFaceStorageReader(str(folder), thread_count=threads)
    metadata = dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    state = {}
    for name, found in metadata.items():
        extents = [each.stop - each.start for each in part(tuple(found.size), dimension)]
        state[name] = torch.empty(extents, dtype=found.properties.dtype)
    dcp.load(state, storage_reader=reader, planner=RanksPlanner(dimension), no_dist=True)
    yield from state.items()


WAYS: dict[str, Callable[[Path, int], Loaded]] = {
    "stream(plan)": stream,
    "get_slice, installed": installed(by_get_slice),
    "safetensors slices": by_get_slice,
    "safetensors slices, pread": partial(by_get_slice, backend="pread"),
    "torch's reader, 1 thread": partial(by_torchs_reader, threads=1),
    "torch's reader, 8 threads": partial(by_torchs_reader, threads=8),
}


if __name__ == "__main__":
    way, dimension = WAYS[sys.argv[1]], int(sys.argv[3])
    report(lambda folder: way(folder, dimension), Path(sys.argv[2]))
