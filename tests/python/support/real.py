"""Real file systems and real tools. With PAGESTREAM_TEST_REQUIRE_REAL=1, a missing one is a failure."""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
)


def missing(what):
    """Skips the test, or fails it if nothing may be skipped."""
    if os.environ.get("PAGESTREAM_TEST_REQUIRE_REAL") == "1":
        pytest.fail(f"{what} is needed (PAGESTREAM_TEST_REQUIRE_REAL=1)")
    pytest.skip(f"{what} is needed")


def need_tool(name):
    found = shutil.which(name)
    if found is None:
        missing(f"the program {name}")
    return str(found)


@contextlib.contextmanager
def mounted(command, point):
    """Runs a FUSE daemon that mounts itself at `point`, and unmounts it afterwards."""
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
def bindfs(source, point, *options):
    command = [need_tool("bindfs"), *(f"-o{option}" for option in options), str(source), str(point)]
    with mounted(command, point) as mount:
        yield mount


@contextlib.contextmanager
def stoppable_bindfs(folder):
    """Yields a mount with a file `f` of 1 MiB, and its foreground daemon, which tests stop and resume."""
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
def sshfs(source, point, *options):
    """Uses the real SFTP protocol over a pipe: a script that runs sftp-server serves as the "ssh command"."""
    server = next((path for path in SFTP_SERVERS if os.path.exists(path)), None)
    if server is None:
        missing("OpenSSH's sftp-server")
    script = point.parent / "sftp-pipe"
    script.write_text(f"#!/bin/sh\nexec {server}\n")
    script.chmod(0o755)
    command = [need_tool("sshfs"), f"-ossh_command={script}", *(f"-o{option}" for option in options)]
    with mounted([*command, f"localhost:{source}", str(point)], point) as mount:
        yield mount


def file_system_type(path):
    """Returns the file system type of the longest mount point that is a parent of `path`."""
    best = ("", "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        inside = path.resolve() == Path(point) or Path(point) in path.resolve().parents
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


@functools.cache
def slow_fuse_program():
    """Returns the project's FUSE daemon, tests/rust/slow_fuse.rs. Builds it if `cargo test` has not."""
    command = [need_tool("cargo"), "build", "--quiet", "--example", "slow_fuse"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/examples/slow_fuse"


@dataclass
class SlowMount:
    """A `slow_fuse` mount. Its counts become available once it is unmounted."""

    path: Path
    gate: "Gate"
    counts: dict[str, Any] = field(default_factory=dict)


class Gate:
    """Holds requests of a mount until the test releases them.

    A thread that waits for a page keeps the GIL, which the test needs. Therefore, Python must not use held
    bytes through a mapping.
    """

    def __init__(self, daemon):
        self._daemon = daemon
        self._lock = threading.Lock()

    def _tell(self, line):
        with self._lock:
            self._daemon.stdin.write(f"{line}\n")
            self._daemon.stdin.flush()
            return json.loads(self._daemon.stdout.readline())

    def hold(self, start=0, stop=1 << 62):
        """Holds later reads that begin within these bytes of a file."""
        self._tell(f"hold reads {start} {stop}")

    def hold_openings(self):
        self._tell("hold openings")

    def wait_for(self, count):
        """Waits until at least this many requests are held."""
        self._tell(f"wait {count}")

    def held(self):
        """Returns the offset and length of each held read, oldest first."""
        return [tuple(each) for each in self._tell("held")]

    def release(self, count):
        """Releases the oldest held requests."""
        self._tell(f"release {count}")

    def fail(self, count, errno):
        """Makes the oldest held requests fail."""
        self._tell(f"fail {count} {errno}")

    def open(self):
        """Releases all requests and holds no later ones."""
        self._tell("open")

    def counts(self):
        """Returns the counts so far."""
        return self._tell("counts")


def set_read_ahead(mount, read_ahead_bytes):
    device = mount.stat().st_dev
    control = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    if not os.access(control, os.W_OK):
        missing(f"the right to write {control}")
    control.write_text(str(read_ahead_bytes >> 10))


@contextlib.contextmanager
def slow_fuse(
    source,
    mount,
    *,
    delay_ms=0,
    bandwidth_bytes=None,
    request_bytes=None,
    read_ahead_bytes=None,
    direct_io=False,
    keep_cache=False,
    fail_after=None,
    fail_range=None,
    errno=None,
    short_reads=False,
    threads=64,
    background=None,
    refuse_direct=None,
    attributes_hold_ms=None,
    whole_seconds=False,
    open_delay_ms=0,
    gather=None,
    program=None,
):
    """Shows the folder `source` at `mount`, with a delay for each read request, with failures, or with short
    reads.

    `bandwidth_bytes` is the limit for all requests together in a second, `request_bytes` the largest request,
    and `read_ahead_bytes` the kernel's read-ahead window of the mount (default 128 KiB). With `keep_cache`,
    opening a file leaves its pages in the page cache; otherwise the kernel drops them. Each open takes
    `open_delay_ms` longer. The kernel may cache attributes for `attributes_hold_ms`, by default a second.
    With `whole_seconds`, times have no fractions.

    `fail_after` is the number of read requests that succeed before all later ones fail with `errno` (default
    EIO). Reads of any byte in `fail_range` fail too. `refuse_direct` makes O_DIRECT fail at "open" or at
    "read".

    `gather` is a number of reads: reads are held until this many wait together. If the programs that use the
    mount fall asleep first, the held reads continue. The first 64 KiB of each file, its header, are exempt.
    `.gate` holds requests under the test's control. `threads` answer requests. `background` is the number of
    the kernel's own requests that arrive at a time, by default one per thread. `program` is a build of the
    daemon, by default the tests' build.

    Afterwards, `.counts` has `read_requests`, `largest_request_bytes`, `read_bytes`, `attribute_requests`,
    `openings` of files, `most_in_flight` reads, and `read_bytes_by_size`: for each n, the bytes of requests
    of 2**n up to 2**(n + 1) bytes.
    """
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        missing("/dev/fuse")
    unmount = [need_tool("fusermount3"), "-u", "-z", str(mount)]
    command = [program or str(slow_fuse_program()), str(source), str(mount), "--delay-ms", str(delay_ms)]
    command += ["--threads", str(threads)]
    command += [] if bandwidth_bytes is None else ["--bandwidth-bytes", str(bandwidth_bytes)]
    command += [] if request_bytes is None else ["--request-bytes", str(request_bytes)]
    command += ["--direct-io"] if direct_io else []
    command += ["--keep-cache"] if keep_cache else []
    command += ["--short-reads"] if short_reads else []
    command += [] if fail_after is None else ["--fail-after", str(fail_after)]
    command += [] if fail_range is None else ["--fail-range", f"{fail_range[0]}-{fail_range[1]}"]
    command += [] if background is None else ["--background", str(background)]
    command += [] if refuse_direct is None else ["--refuse-direct", refuse_direct]
    command += [] if attributes_hold_ms is None else ["--attributes-hold-ms", str(attributes_hold_ms)]
    command += ["--whole-seconds"] if whole_seconds else []
    command += ["--open-delay-ms", str(open_delay_ms)] if open_delay_ms else []
    command += [] if errno is None else ["--errno", str(errno)]
    command += [] if gather is None else ["--gather", str(gather)]
    mount.mkdir(exist_ok=True)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as daemon:
        found = SlowMount(mount, Gate(daemon))
        try:
            assert daemon.stdout is not None
            if daemon.stdout.readline() != "ready\n":
                missing(f"a mount by slow_fuse ({daemon.communicate()[1].strip()})")
            if read_ahead_bytes is not None:
                set_read_ahead(mount, read_ahead_bytes)
            yield found
            output, errors = daemon.communicate(timeout=600)
            assert daemon.returncode == 0, errors
            found.counts.update(json.loads(output))
        finally:
            if daemon.poll() is None:
                daemon.kill()
            # A mount whose daemon has died still exists, but `ismount` does not see it.
            subprocess.run(unmount, check=False, capture_output=True)
