"""Ranks of a real process group, started by torchrun or by accelerate."""

import os
import subprocess
import sys

TRIES = 3


def torchrun(world_size):
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]


def accelerate_launch(world_size):
    # Several processes are several GPUs to it; the program itself decides what it runs on.
    module = ["-m", "accelerate.commands.accelerate_cli", "launch"]
    return [
        *module,
        "--multi_gpu",
        f"--num_processes={world_size}",
        "--num_machines=1",
        "--mixed_precision=no",
    ]


def run_ranks(world_size, *command, environment=None, launch=torchrun):
    """Runs a Python file with its arguments on so many ranks, and returns what they print.

    One that fails is a failed assertion.
    """
    launcher = launch(world_size)
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, *launcher, *map(str, command)],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        # On a busy machine gloo's own connections between the ranks break now and then, before any of ours.
        if "connectFullMesh failed" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout
