"""The growth of anonymous memory (RssAnon) for the same work, each contender in its own process.

Run as a script, this file imports torch once, and forks one process for each contender.
"""

from __future__ import annotations

import collections
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from files import DemoError
from measure import Measured, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

BATCHES = 50
SHAPE = (64, 1024)


def compare(train_path: Path, weights_path: Path) -> list[Row]:
    """Measures each contender in its own process.

    Args:
        train_path: A token file of `uint16`.
        weights_path: A safetensors file.

    Returns:
        A row for each pair, or no rows if the kernel does not count RssAnon.
    """
    pairs = [
        (f"{BATCHES} batches 64 x 1024", "TokenLoader", "nanoGPT get_batch", train_path),
        ("all weights, summed", "open_checkpoint", "safetensors, NumPy", weights_path),
        ("all weights, summed", "load_file", "safetensors, torch", weights_path),
    ]
    if _resident_bytes() is None:
        return []
    grown = _measure({name: path for _, *names, path in pairs for name in names})
    return [
        Row(
            group="memory: growth of RssAnon of a fresh process",
            case=case,
            ours=ours,
            theirs=theirs,
            unit="bytes",
            our_value=grown[ours],
            their_value=grown[theirs],
        )
        for case, ours, theirs, _ in pairs
    ]


def _measure(paths: Mapping[str, Path]) -> dict[str, Measured]:
    """Measures contenders, given by name with a file each."""
    works = [(name, str(path)) for name, path in paths.items()]
    command = [sys.executable, __file__, json.dumps(works)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        message = f"the program that measures memory failed:\n{result.stderr}"
        raise DemoError(message)
    grown = zip(paths, json.loads(result.stdout), strict=True)
    return {name: Measured.of([grown_bytes]) for name, grown_bytes in grown}


def _resident_bytes() -> int | None:
    """Returns RssAnon of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return 1024 * int(value.split()[0])
    return None


def _work(name: str, path: Path) -> object:
    """Does the work of one contender and returns the objects that a user would still hold."""
    import compare_weights
    import token_batches
    from pagestream.torch import TokenLoader

    if name == "TokenLoader":
        windows, length = SHAPE
        loader = TokenLoader(path, sequence_length=length, batch_size=windows, order="random", epochs=None)
        return loader, _last(next(loader) for _ in range(BATCHES))
    if name == "nanoGPT get_batch":
        return _last(token_batches.nanogpt_batch(path, SHAPE) for _ in range(BATCHES))
    readers: dict[str, Callable[[Path], Mapping[str, Any]]] = {
        "open_checkpoint": compare_weights.pagestream_numpy,
        "safetensors, NumPy": compare_weights.safetensors_numpy,
        "load_file": compare_weights.pagestream_torch,
        "safetensors, torch": compare_weights.safetensors_torch,
    }
    arrays = readers[name](path)
    return arrays, compare_weights.total(arrays)


def _last(values: Iterable[object]) -> object:
    return collections.deque(values, maxlen=1)


def _growth_bytes(name: str, path: str) -> int:
    """Returns how much RssAnon grows by the work of one contender, without torch's first operation."""
    import torch

    import compare_tokens

    torch.stack([torch.ones(compare_tokens.SHAPES[0])] * 2).sum().item()
    before_bytes = _resident_bytes() or 0
    held = _work(name, Path(path))
    after_bytes = _resident_bytes() or 0
    del held
    return after_bytes - before_bytes


def main() -> None:
    """Prints the growth of each contender, in bytes."""
    import compare_tokens  # noqa: F401 - imports torch, which all forks share

    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        grown = pool.starmap(_growth_bytes, json.loads(sys.argv[1]), chunksize=1)
    sys.stdout.write(json.dumps(grown))


if __name__ == "__main__":
    main()
