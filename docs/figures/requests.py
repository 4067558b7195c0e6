"""Measures the curves of `read-ahead.md`: the bytes that a slow mount has delivered over time.

    python docs/figures/requests.py     (writes requests.json, which draw.py draws)

A program opens a checkpoint with `safe_open` and uses one tensor after another, with `safetensors` and after
`install()`. The curves count the bytes that the daemon of the mount has read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pagestream.safetensors.numpy import save_file

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "tests/python"))  # the tests mount the same file system
from support import real

MIB = 1 << 20
TENSORS, TENSOR_MIB, DELAY_MS, REQUEST_BYTES = 32, 8, 10, 128 << 10
PROGRAM = """
import sys
import numpy, torch
import pagestream.safetensors
if sys.argv[2] == "install":
    pagestream.safetensors.install()
from safetensors import safe_open
print("begin", flush=True)
sys.stdin.readline()
total = 0
with safe_open(sys.argv[1], "pt") as f:
    for name in f.keys():
        total += int(f.get_tensor(name).sum())
print(total, flush=True)
"""


def daemon() -> int:
    """Returns the process that serves the mount."""
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        if "slow_fuse" in Path(f"/proc/{child}/cmdline").read_text():
            return int(child)
    sys.exit("no daemon is running")


def delivered(process: int) -> int:
    """Returns the bytes that the daemon has read so far."""
    lines = Path(f"/proc/{process}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def curve(folder: Path, way: str) -> tuple[list[tuple[float, float]], int]:
    """Returns the seconds and MiB of a load, and the sum of all tensors."""
    with real.slow_fuse(
        folder, folder.parent / "mnt", delay_ms=DELAY_MS, request_bytes=REQUEST_BYTES
    ) as mount:
        command = [sys.executable, "-c", PROGRAM, str(mount.path / "model.safetensors"), way]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            assert program.stdin is not None
            assert program.stdout.readline() == "begin\n"
            server = daemon()
            before, begun, points = delivered(server), time.monotonic(), []
            program.stdin.write("\n")
            program.stdin.flush()
            os.set_blocking(program.stdout.fileno(), False)
            while not (total := program.stdout.readline()):
                points.append((round(time.monotonic() - begun, 4), (delivered(server) - before) / MIB))
                time.sleep(0.005)
            points.append((round(time.monotonic() - begun, 4), (delivered(server) - before) / MIB))
    return points, int(total)


def main() -> None:
    """Measures both ways, and checks that their results are equal."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as inner:
        folder = Path(inner) / "model"
        folder.mkdir()
        rng = np.random.default_rng(0)
        save_file(
            {f"layers.{n:02}.weight": rng.integers(0, 127, (TENSOR_MIB, MIB), "u1") for n in range(TENSORS)},
            folder / "model.safetensors",
        )
        curves = {way: curve(folder, way) for way in ("stock", "install")}
    assert curves["stock"][1] == curves["install"][1]
    facts = {"delay_ms": DELAY_MS, "request_bytes": REQUEST_BYTES, "total_mib": TENSORS * TENSOR_MIB}
    found = facts | {way: points for way, (points, _) in curves.items()}
    (HERE / "requests.json").write_text(json.dumps(found) + "\n")
    print({way: points[-1] for way, (points, _) in curves.items()})


if __name__ == "__main__":
    main()
