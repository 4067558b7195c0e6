"""Ranks of a real process group, started by torchrun."""

import os
import subprocess
import sys

TRIES = 3


def run_ranks(world_size, *command, environment=None):
    """Runs a Python file with its arguments on so many ranks; one that fails is a failed assertion."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, *launcher, *map(str, command)],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        # On a busy machine gloo's own connections between the ranks break now and then, before any of ours.
        if "connectFullMesh failed" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
