"""The AArch64 copy routine, assembled and run under emulation."""

import subprocess
from pathlib import Path

from support import real

ROOT = Path(__file__).parents[2]


def test_the_aarch64_copy_survives_faults_and_tells_what_it_copied(tmp_path):
    compiler = real.need_tool("aarch64-linux-gnu-gcc")
    emulator = real.need_tool("qemu-aarch64")
    program = tmp_path / "copy"
    source = ROOT / "tests/c/copy_aarch64.c"
    routine = ROOT / "src/os/fault/copy_aarch64.s"
    options = ["-static", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [compiler, *options, source, "-x", "assembler", routine, "-o", program],
        check=True,
        capture_output=True,
    )
    done = subprocess.run([emulator, program], capture_output=True, text=True, check=True)
    checks, faults = (int(word) for word in done.stdout.split() if word.isdigit())
    assert checks == 7800
    assert faults > 1000
