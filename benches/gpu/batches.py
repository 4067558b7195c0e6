"""Batches to a GPU: the consumer's wait at a realistic step, and the rate in the type of the files.

    python benches/gpu/batches.py [--folder DIR] [--gib 2] [--seconds 5]

The limit is a plain copy of the same number of bytes from pinned memory. Prints Markdown.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from pagestream.torch import TokenLoader

ROUNDS = 5
SHAPES = ((64, 1024), (32, 4096))


def token_file(folder: Path, gib: float) -> Path:
    path = folder / "tokens.bin"
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(int(gib * 16)):
            file.write(generator.integers(0, 50_000, 32 << 20, "u2").tobytes())
    return path


def pinned_rate(nbytes: int, seconds: float) -> float:
    """Returns the bytes per second from a few pinned buffers to the device, on one stream."""
    sources = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) for _ in range(4)]
    places = [torch.empty(nbytes, dtype=torch.uint8, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for source, place in zip(sources, places, strict=True):
            place.copy_(source, non_blocking=True)
        count += 4
        torch.cuda.current_stream().synchronize()
    return count * nbytes / (time.perf_counter() - begin)


def loader_rate(path: Path, rows: int, length: int, dtype: str, seconds: float) -> float:
    """Returns the bytes of raw x and y that arrive on the device per second."""
    options = {"sequence_length": length, "batch_size": rows, "epochs": None}
    with TokenLoader(path, dtype=dtype, device="cuda", **options) as loader:
        for _ in range(20):
            next(loader)
        torch.cuda.synchronize()
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            next(loader)
            count += 1
        torch.cuda.synchronize()
        return count * rows * length * 2 * 2 / (time.perf_counter() - begin)


def waits(path: Path, rows: int, length: int, steps: int) -> tuple[float, float, float, float]:
    """Returns the milliseconds of a step, and of its `next`: median, 99th percentile, longest."""
    model = torch.nn.Sequential(
        torch.nn.Embedding(50_304, 768),
        *(
            torch.nn.TransformerEncoderLayer(768, 12, batch_first=True, dtype=torch.bfloat16)
            for _ in range(4)
        ),
        torch.nn.Linear(768, 50_304),
    ).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    took, spent = [], []
    options = {"sequence_length": length, "batch_size": rows, "epochs": None}
    with TokenLoader(path, device="cuda", **options) as loader:
        for _ in range(steps):
            begin = time.perf_counter()
            x, y = next(loader)
            took.append(time.perf_counter() - begin)
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
            spent.append(time.perf_counter() - begin)
    warm = slice(5, None)
    worst = np.percentile(took[warm], 99)
    usual = statistics.median(took[warm])
    return statistics.median(spent[warm]) * 1e3, usual * 1e3, float(worst) * 1e3, max(took[warm]) * 1e3


def verify(path: Path) -> None:
    tokens = np.memmap(path, "u2", "r")
    with TokenLoader(path, sequence_length=1024, batch_size=64, order="sequential", device="cuda") as loader:
        for number in range(50):
            x, y = next(loader)
            first = number * 64 * 1024
            expected = torch.from_numpy(tokens[first : first + 64 * 1024 + 1].astype("i8"))
            if not (
                torch.equal(x.cpu().view(-1), expected[:-1]) and torch.equal(y.cpu().view(-1), expected[1:])
            ):
                message = f"batch {number} on the device is not that of the file"
                raise AssertionError(message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="for the token file; a temporary one by default")
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--seconds", type=float, default=5, help="of one measurement")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = token_file(Path(folder), options.gib)
        verify(path)
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
        print("| batch | type | GB/s of raw tokens | pinned copy alone | share |\n|---|---|---|---|---|")
        for rows, length in SHAPES:
            for dtype in ("raw", "int64"):
                found, limit = [], []
                for _ in range(ROUNDS):
                    found.append(loader_rate(path, rows, length, dtype, options.seconds) / 1e9)
                    limit.append(pinned_rate(rows * length * 2 * 2, options.seconds) / 1e9)
                ours, most = statistics.median(found), statistics.median(limit)
                span = f"{min(found):.2f} to {max(found):.2f}"
                print(
                    f"| {rows} x {length} | {dtype} | {ours:.2f} ({span}) | {most:.2f} | {ours / most:.2f} |"
                )
        print("\n| batch | step | next, median | 99th percentile | longest |\n|---|---|---|---|---|")
        for rows, length in ((8, 1024),):
            step, usual, worst, longest = waits(path, rows, length, options.steps)
            print(
                f"| {rows} x {length} | {step:.1f} ms | {usual:.2f} ms | {worst:.2f} ms | {longest:.2f} ms |"
            )


if __name__ == "__main__":
    main()
