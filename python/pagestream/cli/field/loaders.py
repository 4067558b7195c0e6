"""The loaders of the field. Each yields, step by step, the data that it has read from a file."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from pagestream.cli import _contests
from pagestream.cli._contests import BATCH_SIZE, SEQUENCE_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # Names and values: tensors, or x and y of a batch.
    Steps = Iterator[tuple[str, Any]]

# The suffix of LitData's copy of a token file.
LITDATA_SUFFIX = ".litdata"
_LITDATA_CHUNK_BYTES = 64_000_000
_LITDATA_WINDOWS = 512


@dataclass(frozen=True)
class Loader:
    """A way to read a file.

    Attributes:
        steps: Called with the path and a seed. The data that it yields is verified.
        needs: Required modules, besides NumPy.
        is_ours: Whether it is pagestream's way.
        reads_the_file: Whether it reads the file itself, and not a copy in its own format.
    """

    steps: Callable[[str, int], Steps]
    needs: tuple[str, ...] = ()
    is_ours: bool = False
    reads_the_file: bool = True

    @property
    def is_installed(self) -> bool:
        """Whether all required modules are installed."""
        return all(find_spec(name) is not None for name in self.needs)


def _batches(make: Callable[[str, int], Iterator[tuple[Any, Any]]], path: str, seed: int) -> Steps:
    return (("batch", pair) for pair in make(path, seed))


def _by_advised_memmap(path: str, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yields batches from one `np.memmap`, with the advice to the kernel that reads are random."""
    tokens: Any = np.memmap(path, np.uint16, "r")
    tokens.base.madvise(mmap.MADV_RANDOM)
    random = np.random.default_rng(seed)
    while True:
        starts = random.integers(len(tokens) - SEQUENCE_LENGTH, size=BATCH_SIZE)
        windows = np.stack([tokens[start : start + SEQUENCE_LENGTH + 1].astype(np.int64) for start in starts])
        yield windows[:, :-1], windows[:, 1:]


class _Source:
    """Random windows as a Grain source."""

    def __init__(self, path: str, seed: int) -> None:
        self.windows = _contests.Windows(path, seed)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - two arrays
        return self.windows[index]


def _by_grain(path: str, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yields batches of Grain, with its default of 16 threads."""
    grain = import_module("grain")
    dataset = grain.MapDataset.source(_Source(path, seed)).to_iter_dataset(grain.ReadOptions())
    yield from dataset.batch(BATCH_SIZE)


def convert_for_litdata(path: str) -> None:
    """Writes the copy that `LitData` reads."""
    streaming, torch = import_module("litdata.streaming"), import_module("torch")
    item_loader = import_module("litdata").TokensLoader(SEQUENCE_LENGTH + 1)
    cache = streaming.Cache(path + LITDATA_SUFFIX, chunk_bytes=_LITDATA_CHUNK_BYTES, item_loader=item_loader)
    tokens = np.memmap(path, np.uint16, "r")
    step = (SEQUENCE_LENGTH + 1) * _LITDATA_WINDOWS
    for number, start in enumerate(range(0, len(tokens) - step + 1, step)):
        cache[number] = torch.from_numpy(np.array(tokens[start : start + step]))
    cache.done()
    cache.merge()


def _by_litdata(path: str, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yields batches of LitData, which shuffles chunks, and windows within them."""
    litdata = import_module("litdata")
    loader = litdata.TokensLoader(SEQUENCE_LENGTH + 1)
    while True:
        windows: list[Any] = []
        for window in litdata.StreamingDataset(
            path + LITDATA_SUFFIX, item_loader=loader, shuffle=True, seed=seed
        ):
            windows.append(window.numpy().astype(np.int64))
            if len(windows) == BATCH_SIZE:
                both = np.stack(windows)
                yield both[:, :-1], both[:, 1:]
                windows = []
        seed += 1


def _framework() -> str:
    return "pt" if find_spec("torch") is not None else "np"


def _by_stream(path: str, _seed: int) -> Steps:
    from pagestream.weights.checkpoint import open_checkpoint

    with open_checkpoint(path) as weights:
        yield from weights.stream()


def _by_safe_open(package: str, path: str, _seed: int) -> Steps:
    with import_module(package).safe_open(path, _framework()) as file:
        for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
            yield name, file.get_tensor(name)


def _by_load_file(package: str, path: str, _seed: int) -> Steps:
    module = import_module(f"{package}.{'torch' if _framework() == 'pt' else 'numpy'}")
    yield from module.load_file(path).items()


def _by_fastsafetensors(path: str, _seed: int) -> Steps:
    module, torch = import_module("fastsafetensors"), import_module("torch")
    loader = module.SafeTensorsFileLoader(module.SingleGroup(), torch.device("cpu"), nogds=True)
    loader.add_filenames({0: [path]})
    buffer = loader.copy_files_to_device()
    for name in loader.get_keys():
        yield name, buffer.get_tensor(name)
    buffer.close()
    loader.close()


def _by_runai(strategy: str | None, path: str, _seed: int) -> Steps:
    if strategy is not None:
        os.environ["RUNAI_STREAMER_FS_STRATEGY"] = strategy
    with import_module("runai_model_streamer").SafetensorsStreamer() as streamer:
        streamer.stream_files([path])
        yield from streamer.get_tensors()


def _by_cattensors(path: str, seed: int) -> Steps:
    import_module("cattensors").patch()
    yield from _by_safe_open("safetensors", path, seed)


TOKENS = {
    "pagestream, TokenLoader": Loader(partial(_batches, _contests.by_loader), is_ours=True),
    "np.memmap, new for each batch": Loader(partial(_batches, _contests.by_memmap)),
    "np.memmap, MADV_RANDOM": Loader(partial(_batches, _by_advised_memmap)),
    "DataLoader, 2 workers": Loader(partial(_batches, _contests.by_data_loader), ("torch",)),
    "Grain": Loader(partial(_batches, _by_grain), ("grain",)),
    "LitData": Loader(partial(_batches, _by_litdata), ("litdata", "torch"), reads_the_file=False),
}
WEIGHTS = {
    "pagestream, stream": Loader(_by_stream, is_ours=True),
    "pagestream, safe_open": Loader(partial(_by_safe_open, "pagestream.safetensors"), is_ours=True),
    "pagestream, load_file": Loader(partial(_by_load_file, "pagestream.safetensors"), is_ours=True),
    "safetensors, safe_open": Loader(partial(_by_safe_open, "safetensors"), ("safetensors",)),
    "safetensors, load_file": Loader(partial(_by_load_file, "safetensors"), ("safetensors",)),
    "runai-model-streamer": Loader(partial(_by_runai, None), ("runai_model_streamer", "torch")),
    "runai-model-streamer, buffered": Loader(
        partial(_by_runai, "io_uring_buffered"), ("runai_model_streamer", "torch")
    ),
    "fastsafetensors": Loader(_by_fastsafetensors, ("fastsafetensors", "torch")),
    "cattensors": Loader(_by_cattensors, ("cattensors", "safetensors")),
}
KINDS = {"tokens": TOKENS, "weights": WEIGHTS}
