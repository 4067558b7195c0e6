"""Loads a checkpoint with the ranks of a process group, each from its own folder, and writes the costs.

    torchrun … rank_weights.py WAY RESULTS FOLDER...

Each rank writes JSON to `RESULTS/<rank>`: the seconds until all ranks had loaded, and for each tensor a sum
over all bytes of the rank's part.
"""

import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cold import touch_memory
from load_weights import by_safe_open, shards, used
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor import empty as distributed_empty

Tensors = Iterator[tuple[str, torch.Tensor]]
READS_AT_A_TIME = 32


def columns(shape: tuple[int, ...]) -> tuple[slice, slice]:
    """Returns this rank's part of a matrix in tensor parallelism."""
    extent = shape[1] // dist.get_world_size()
    return slice(None), slice(dist.get_rank() * extent, (dist.get_rank() + 1) * extent)


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    # Uses torch's reader, so that our cache contains no header.
    found = dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: tuple(each.size) for name, each in found.items()}  # type: ignore[union-attr]


def stream(folder: Path, *, is_shared: bool, is_part: bool = False) -> Callable[[], Tensors]:
    from pagestream.torch import stream_checkpoint

    return lambda: stream_checkpoint(
        folder,
        device="cpu",
        plan=(lambda info: columns(info.shape)) if is_part else None,
        process_group=dist.group.WORLD if is_shared else None,
    )


def by_safetensors(folder: Path) -> Callable[[], Tensors]:
    return lambda: by_safe_open(folder)  # type: ignore[return-value]


def by_get_slice(folder: Path) -> Callable[[], Tensors]:
    import safetensors

    def load() -> Tensors:
        for path in shards(folder):
            with safetensors.safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                    found = file.get_slice(name)
                    yield name, found[columns(tuple(found.get_shape()))]

    return load


def torchs_reader(folder: Path, threads: int) -> dcp.StorageReader:
    return dcp.HuggingFaceStorageReader(str(folder), thread_count=threads)


def our_reader(folder: Path, *, read_once: bool = True) -> dcp.StorageReader:
    from pagestream.torch import HuggingFaceStorageReader

    return HuggingFaceStorageReader(folder, read_once=read_once)


def fully_sharded(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the state of an FSDP2 model whose parameters have the checkpoint's names and shapes."""
    model = torch.nn.Module()
    with torch.device("meta"):
        for name, (rows, width) in shapes(folder).items():
            *path, last = name.removesuffix(".weight").split(".")
            parent = model
            for each in path:
                if not hasattr(parent, each):
                    parent.add_module(each, torch.nn.Module())
                parent = getattr(parent, each)
            parent.add_module(last, torch.nn.Linear(width, rows, bias=False, dtype=torch.bfloat16))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    model.to_empty(device="cpu")
    return model.state_dict()


def column_parallel(folder: Path) -> dict[str, torch.Tensor]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {
        name: distributed_empty(*shape, dtype=torch.bfloat16, device_mesh=mesh, placements=[Shard(1)])
        for name, shape in shapes(folder).items()
    }


def by_dcp(
    folder: Path,
    reader: Callable[[Path], dcp.StorageReader],
    state_of: Callable[[Path], dict[str, torch.Tensor]],
) -> Callable[[], Tensors]:
    state, storage_reader = state_of(folder), reader(folder)

    def load() -> Tensors:
        dcp.load(state, storage_reader=storage_reader)
        for name, tensor in state.items():
            yield name, tensor.to_local() if isinstance(tensor, DTensor) else tensor

    return load


def reads_alone(folder: Path) -> Callable[[], Iterator[tuple[str, np.ndarray]]]:
    """Reads this rank's rows into reused memory and yields sums. This is the limit of the machine."""
    memory = threading.local()

    def load_rows(rows: tuple[str, int, int, int]) -> tuple[str, np.ndarray]:
        name, file, place, nbytes = rows
        if not hasattr(memory, "array"):
            memory.array = np.empty(nbytes, np.uint8)
        assert os.preadv(file, [memory.array], place) == memory.array.nbytes == nbytes
        return name, np.array([used(memory.array)], np.uint64)

    def load() -> Iterator[tuple[str, np.ndarray]]:
        with ExitStack() as files, ThreadPoolExecutor(READS_AT_A_TIME) as pool:
            opened = [files.enter_context(path.open("rb", buffering=0)) for path in shards(folder)]
            yield from pool.map(load_rows, [rows for file in opened for rows in own_rows(file)])

    return load


def own_rows(file: FileIO) -> Iterator[tuple[str, int, int, int]]:
    """Returns this rank's rows of each matrix of a file: name, descriptor, offset and size."""
    header_bytes = int.from_bytes(file.read(8), "little")
    for name, entry in json.loads(file.read(header_bytes)).items():
        first, last = entry["data_offsets"]
        nbytes = (last - first) // dist.get_world_size()
        yield name, file.fileno(), 8 + header_bytes + first + dist.get_rank() * nbytes, nbytes


READERS: dict[str, Callable[[Path], dcp.StorageReader]] = {
    "our reader": our_reader,
    "our reader, read_once=False": partial(our_reader, read_once=False),
    "torch's reader, 1 thread": partial(torchs_reader, threads=1),
    "torch's reader, 8 threads": partial(torchs_reader, threads=8),
}
# Each way prepares its objects before the clock starts, and returns the function to measure.
WAYS: dict[str, Callable[[Path], Callable[[], Iterator[tuple[str, Any]]]]] = {
    "FSDP2: the reads alone": reads_alone,
    "whole: stream, process_group": partial(stream, is_shared=True),
    "whole: stream, each for itself": partial(stream, is_shared=False),
    "whole: safetensors, each for itself": by_safetensors,
    "columns: stream, process_group": partial(stream, is_shared=True, is_part=True),
    "columns: safetensors slices": by_get_slice,
    **{
        f"FSDP2: {name}": partial(by_dcp, reader=reader, state_of=fully_sharded)
        for name, reader in READERS.items()
    },
    **{
        f"columns: {name}": partial(by_dcp, reader=reader, state_of=column_parallel)
        for name, reader in READERS.items()
    },
}


def main(way: str, results: Path, folders: list[Path]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = folders[dist.get_rank()]
    load = WAYS[way](folder)
    touch_memory()
    dist.barrier()
    begun, begun_cpu = time.perf_counter(), time.process_time()
    sums = {name: used(tensor) for name, tensor in load()}
    dist.barrier()
    seconds = time.perf_counter() - begun
    found = {"seconds": seconds, "cpu_seconds": time.process_time() - begun_cpu, "sums": sums}
    (results / str(dist.get_rank())).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [Path(folder) for folder in sys.argv[3:]])
