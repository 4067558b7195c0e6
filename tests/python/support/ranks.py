"""Ranks of a real process group: forks of a process with torch, or started by torchrun or accelerate."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from support.torch_process import TorchProcess, run_torch

# Selects the loopback device. gloo would otherwise look up the machine's name and use its address.
GLOO = {"GLOO_SOCKET_IFNAME": "lo"}
# Runs its arguments like `python -m`.
LAUNCHER = """
import runpy, sys
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def torchrun(world_size):
    return ["torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]


def accelerate_launch(world_size):
    # accelerate counts processes as GPUs, but the program chooses its own device.
    return [
        "accelerate.commands.accelerate_cli",
        "launch",
        "--multi_gpu",
        f"--num_processes={world_size}",
        "--num_machines=1",
        "--mixed_precision=no",
    ]


def run_ranks(world_size, program, *arguments, environment=None, launch=None):
    """Runs a Python file with arguments on several ranks, and returns their output.

    Without a launcher, the ranks are forks with torchrun's environment variables. This process then hosts the
    store of the group, as a launcher does.

    Raises: |- AssertionError: A rank failed. The message has the output of every rank.
    """
    variables = {**os.environ, **GLOO, **(environment or {})}
    if launch is None:
        return _run_forks(world_size, program, *arguments, environment=variables)
    # The launcher is a fork too. It starts each rank as a new Python process.
    command = [*launch(world_size), program, *arguments]
    done = run_torch(LAUNCHER, *command, env=variables, has_brief_end=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _run_forks(world_size, program, *arguments, environment):
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
    }
    pipe, ranks = subprocess.PIPE, []

    def finished(rank):
        output, errors = rank.communicate(timeout=800)
        return rank.returncode, output, errors

    try:
        for number in range(world_size):
            place = {"RANK": str(number), "LOCAL_RANK": str(number)}
            options = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "text": True}
            options["has_brief_end"] = True
            ranks.append(TorchProcess(Path(program), *arguments, env={**environment, **place}, **options))
        with ThreadPoolExecutor(world_size) as pool:
            ends = [pool.submit(finished, rank) for rank in ranks]
            try:
                failed = any(end.result()[0] for end in as_completed(ends))
            except subprocess.TimeoutExpired:
                failed = True
            if failed:
                # The other ranks may wait long for the failed rank. All outputs show which one failed first.
                for rank in ranks:
                    rank.kill()
                told = [f"rank {number}: {_told(end)}" for number, end in enumerate(ends)]
                raise AssertionError("\n".join(told))
            return "".join(end.result()[1] for end in ends)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _told(end):
    """Returns how a rank ended, with its output."""
    if isinstance(end.exception(), subprocess.TimeoutExpired):
        return "did not end within 280 s"
    return "exit code {}\n{}\n{}".format(*end.result())
