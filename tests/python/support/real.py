"""Real file systems and real tools. With PAGESTREAM_TEST_REQUIRE_REAL=1 a missing one is a failure."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
)


def missing(what: str) -> None:
    """Skips the test, or fails it where nothing may be skipped."""
    if os.environ.get("PAGESTREAM_TEST_REQUIRE_REAL") == "1":
        pytest.fail(f"{what} is needed (PAGESTREAM_TEST_REQUIRE_REAL=1)")
    pytest.skip(f"{what} is needed")


def need_tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        missing(f"the program {name}")
    return str(found)


@contextlib.contextmanager
def mounted(command: list[str], point: Path) -> Iterator[Path]:
    """Runs a FUSE daemon that mounts itself on `point`, and unmounts it afterwards."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        missing("/dev/fuse")
    point.mkdir()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing(f"a mount by {command[0]} ({done.stderr.strip()})")
    try:
        while not os.path.ismount(point):
            time.sleep(0.01)
        yield point
    finally:
        unmount = shutil.which("fusermount3") or shutil.which("fusermount") or "umount"
        option = [] if unmount == "umount" else ["-u", "-z"]
        subprocess.run([unmount, *option, str(point)], check=True, capture_output=True)


@contextlib.contextmanager
def bindfs(source: Path, point: Path, *options: str) -> Iterator[Path]:
    command = [need_tool("bindfs"), *(f"-o{option}" for option in options), str(source), str(point)]
    with mounted(command, point) as mount:
        yield mount


@contextlib.contextmanager
def stoppable_bindfs(folder: Path) -> Iterator[tuple[Path, "subprocess.Popen[bytes]"]]:
    """A mount with a file of 1 MiB, `f`, and its daemon in the foreground, to be stopped and continued."""
    program = need_tool("bindfs")
    point, source = folder / "slow", folder / "behind"
    point.mkdir()
    source.mkdir()
    (source / "f").write_bytes(bytes(1 << 20))
    daemon = subprocess.Popen([program, "-f", str(source), str(point)])
    try:
        while not os.path.ismount(point):
            time.sleep(0.01)
        yield point, daemon
    finally:
        daemon.send_signal(signal.SIGCONT)
        daemon.terminate()
        daemon.wait()


@contextlib.contextmanager
def sshfs(source: Path, point: Path, *options: str) -> Iterator[Path]:
    """The real SFTP protocol over a pipe: the "ssh command" is a script that runs sftp-server."""
    server = next((path for path in SFTP_SERVERS if os.path.exists(path)), None)
    if server is None:
        missing("OpenSSH's sftp-server")
    script = point.parent / "sftp-pipe"
    script.write_text(f"#!/bin/sh\nexec {server}\n")
    script.chmod(0o755)
    command = [need_tool("sshfs"), f"-ossh_command={script}", *(f"-o{option}" for option in options)]
    with mounted([*command, f"localhost:{source}", str(point)], point) as mount:
        yield mount


def file_system_type(path: Path) -> str:
    """By the longest mount point that is a parent of `path`."""
    best = ("", "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        inside = path.resolve() == Path(point) or Path(point) in path.resolve().parents
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]
