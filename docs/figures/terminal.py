"""Draws the terminal pictures of the documentation from the output of commands.

    python docs/figures/terminal.py [info residency bench check]

Without names, it draws all pictures. The commands run on a pseudo-terminal, and rich converts their output to
SVG.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from pagestream.safetensors.numpy import save_file

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "tests/python"))  # the tests mount the same file system
from support import real
from support.process import printed_on_terminal

COLUMNS = 96
PICTURES = ("info", "residency", "bench", "check")


def printed(*command: str, cwd: Path) -> str:
    """Returns the output of a command on a terminal."""
    return printed_on_terminal([sys.executable, "-m", "pagestream", *command], COLUMNS, cwd=cwd)


def picture(name: str, *command: str, cwd: Path) -> None:
    """Draws a command and its output."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text(f"$ pagestream {' '.join(command)}", style="bold"))
    console.print(Text.from_ansi(printed(*command, cwd=cwd)))
    path = HERE / f"terminal-{name}.svg"
    console.save_svg(str(path), title="pagestream", unique_id=f"terminal-{name}")
    print(path)


def write_model(folder: Path) -> None:
    """Writes a checkpoint of two shards, large enough for a picture."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for shard in (1, 2):
        tensors = {
            f"model.layers.{layer}.{name}": rng.standard_normal(shape, "f4").astype("f2")
            for layer in range(4 * shard - 4, 4 * shard)
            for name, shape in {
                "mlp.up_proj.weight": (2048, 1024),
                "mlp.down_proj.weight": (1024, 2048),
                "self_attn.qkv_proj.weight": (3072, 1024),
                "input_layernorm.weight": (1024,),
            }.items()
        }
        save_file(tensors, folder / f"model-{shard:05}-of-00002.safetensors", {"format": "pt"})


def draw_residency(work: Path) -> None:
    """Draws a checkpoint that is partly in the page cache."""
    subprocess.run([sys.executable, "-m", "pagestream", "evict", "llama"], cwd=work, check=True)
    file = work / "llama/model-00001-of-00002.safetensors"
    with open(file, "rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        opened.read(file.stat().st_size * 6 // 10)
    picture("residency", "residency", "llama", cwd=work)
    printed("residency", "llama", "--png", str(HERE / "residency.png"), cwd=work)


def main() -> None:
    """Draws the named pictures, or all of them."""
    names = set(sys.argv[1:] or PICTURES)
    if not names <= set(PICTURES):
        sys.exit(f"usage: {sys.argv[0]} [{' '.join(PICTURES)}]")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as inner:
        work = Path(inner)
        write_model(work / "llama")
        if "info" in names:
            picture("info", "info", "llama", cwd=work)
        if "residency" in names:
            draw_residency(work)
        if "bench" in names:
            picture("bench", "bench", "--quick", cwd=work)
        if "check" in names:
            with real.slow_fuse(work / "llama", work / "mnt", delay_ms=10, request_bytes=128 << 10):
                picture("check", "check", "mnt", cwd=work)


if __name__ == "__main__":
    main()
