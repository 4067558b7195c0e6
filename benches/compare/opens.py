"""Opening and reading safetensors files, compared with `safetensors`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
from harness import Row, compare

import pagestream
from pagestream.safetensors import safe_open
from pagestream.safetensors.torch import load_file
from pagestream.torch import stream_checkpoint

NAME = "model.layers.7.part.3.weight"
TITLE = "safetensors files, page cache warm"


def make(path: Path, count: int, elements: int) -> Path:
    generator = np.random.default_rng(0)
    tensors = {
        f"model.layers.{number // 10}.part.{number % 10}.weight": generator.standard_normal(elements, "f4")
        for number in range(count)
    }
    safetensors.numpy.save_file(tensors, path)
    return path


def same(path: Path) -> None:
    """Checks that every tensor is equal in every timed way."""
    expected = safetensors.numpy.load_file(path)
    checkpoint = pagestream.open_checkpoint(path)
    tensors = load_file(path)
    with safe_open(path, "np") as file:
        assert sorted(expected) == file.keys() == sorted(checkpoint)
        for name, array in expected.items():
            assert np.array_equal(file.get_tensor(name), array)
            assert np.array_equal(checkpoint[name], array)
            assert np.array_equal(tensors[name].numpy(), array)


def open_and_get(opener: type, path: Path, framework: str) -> None:
    with opener(path, framework) as file:
        file.get_tensor(NAME)


def get_all(opener: type, path: Path, framework: str) -> None:
    with opener(path, framework) as file:
        for name in file.offset_keys():
            file.get_tensor(name)


def sum_all(opener: type, path: Path, framework: str) -> None:
    with opener(path, framework) as file:
        for name in file.offset_keys():
            file.get_tensor(name).sum()


def stream_all(path: Path) -> None:
    for _ in pagestream.open_checkpoint(path).stream():
        pass


def stream_all_to_torch(path: Path) -> None:
    for _ in stream_checkpoint(path, device="cpu"):
        pass


def same_streamed(path: Path) -> None:
    expected = safetensors.numpy.load_file(path)
    for name, array in pagestream.open_checkpoint(path).stream():
        assert np.array_equal(expected[name], array)
    for name, tensor in stream_checkpoint(path, device="cpu"):
        assert np.array_equal(expected.pop(name), tensor.numpy())
    assert not expected


def both(
    case: str,
    use: Callable[[type, Path, str], object],
    path: Path,
    framework: str,
    *,
    goal: float,
    rounds: int = 15,
) -> Row:
    """Returns the same use of both `safe_open` functions."""
    contestants = {
        "pagestream": partial(use, safe_open, path, framework),
        "safetensors": partial(use, safetensors.safe_open, path, framework),
    }
    return compare(f"{case} ({framework})", contestants, rounds=rounds, goals={"safetensors": goal})


def measure(folder: Path) -> list[Row]:
    rows = []
    for count, goal in ((1_000, 2), (30_000, 3)):
        path = make(folder / f"{count}.safetensors", count, 8)
        same(path)
        rows += [
            both(f"open {count:,} tensors and get one", open_and_get, path, framework, goal=goal)
            for framework in ("np", "pt")
        ]
    small = folder / "1000.safetensors"
    for framework in ("np", "pt"):
        openers = {"pagestream": safe_open, "safetensors": safetensors.safe_open}
        handles = {name: opener(small, framework) for name, opener in openers.items()}
        contestants = {name: partial(handle.get_tensor, NAME) for name, handle in handles.items()}
        rows.append(compare(f"get_tensor of 32 bytes ({framework})", contestants, goals={"safetensors": 3}))
    large = make(folder / "large.safetensors", 300, (1 << 28) // 300)  # 1 GiB
    same(large)
    many = make(folder / "many.safetensors", 10_000, 1536)  # 60 MB
    rows.append(both("every tensor of 1 GiB", get_all, large, "np", rounds=7, goal=100))
    rows.append(both("every tensor of 1 GiB, summed", sum_all, large, "np", rounds=7, goal=1.5))
    for case, path, goal in (("1 GiB in 300 tensors", large, 1), ("60 MB in 10,000 tensors", many, 3)):
        contestants = {
            "pagestream": partial(load_file, path),
            "safetensors": partial(safetensors.torch.load_file, path),
        }
        rows.append(compare(f"load_file of {case} (pt)", contestants, rounds=7, goals={"safetensors": goal}))
    tiny = make(folder / "tiny.safetensors", 100_000, 8)
    same_streamed(tiny)
    for framework, ours, upstream in (
        ("np", stream_all, safetensors.numpy.load_file),
        ("pt", stream_all_to_torch, safetensors.torch.load_file),
    ):
        contestants = {"pagestream": partial(ours, tiny), "safetensors": partial(upstream, tiny)}
        case = f"stream of 100,000 tensors of 32 bytes ({framework})"
        rows.append(compare(case, contestants, rounds=7, goals={"safetensors": 1}))
    return rows
