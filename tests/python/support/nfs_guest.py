"""A User Mode Linux guest: a kernel that runs as a process, with a real NFS client and server, on the host's
file tree.

It needs Debian's packages user-mode-linux, nfs-kernel-server, kmod and iproute2, but neither KVM nor a
network.
"""

import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import pagestream

from support.process import PROGRAMS
from support.real import missing, need_tool

HERE = PROGRAMS / "nfs_guest"
# pytest stores the guest's folder, and the guest or its startup exception, under these keys.
FOLDER, GUEST = pytest.StashKey(), pytest.StashKey()
MEMORY_BYTES = 1 << 30
# On an idle processor, booting and mounting take about six seconds.
BOOT_SECONDS = 120


def folder_of(config):
    """Returns the folder of the `nfs_checks` guest, which exists until the end of the session."""
    if FOLDER not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="guest-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        config.stash[FOLDER] = Path(folder.name)
    return config.stash[FOLDER]


def boot(config):
    """Boots the `nfs_checks` guest for the rest of the session, unless it is already running."""
    if GUEST in config.stash:
        return
    folder = folder_of(config)
    try:
        guest = Guest(Path(__file__).parent / "nfs_checks.py", folder)
    except BaseException as error:  # noqa: BLE001 - the tests that need the guest fail or are skipped
        guest = error
    else:
        config.add_cleanup(guest.close)
        # The pytest-xdist workers read this file.
        (folder / "process").write_text(str(guest.process.pid))
    config.stash[GUEST] = guest


def outcome(config, seconds):
    """Waits for the `nfs_checks` guest. Returns its folder and its output."""
    folder = Path(getattr(config, "workerinput", {}).get("guest_folder", folder_of(config)))
    if (folder / "process").exists() and GUEST not in config.stash:
        process = ProcessOfAnother(int((folder / "process").read_text()))
        return folder, console(process, folder, seconds)
    boot(config)
    if isinstance(config.stash[GUEST], BaseException):
        raise config.stash[GUEST]
    folder = folder_of(config)
    return folder, console(config.stash[GUEST].process, folder, seconds)


class ProcessOfAnother:
    """Stands in for the `subprocess.Popen` of a guest that the pytest-xdist controller has booted.

    The process ID cannot be reused, because the controller reaps the process only at the end of the session.
    """

    def __init__(self, pid):
        self.pid = pid

    def wait(self, timeout=None):
        descriptor = os.pidfd_open(self.pid)
        try:
            if not select.select([descriptor], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        finally:
            os.close(descriptor)


def run_in_guest(program, folder, seconds):
    """Runs a Python program in a new guest, which sees `folder` as /mnt/out. Returns its output."""
    return console(Guest(program, folder).process, folder, seconds)


def console(process, folder, seconds):
    """Waits for the guest to end and returns its output. Kills a guest that exceeds its time."""
    try:
        process.wait(BOOT_SECONDS + seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
    path = folder / "console"
    if not path.exists():
        text = (folder / "kernel").read_text(errors="replace")
        missing(f"a User Mode Linux guest (its kernel says: {text[-2000:]})")
    return path.read_text(errors="replace")


class Guest:
    """A guest that runs a Python program and sees `folder` as /mnt/out."""

    def __init__(self, program, folder):
        """Boots the guest, which ends with its program."""
        linux = need_tool("linux.uml")
        for name in ("rpc.nfsd", "rpc.mountd", "rpcbind", "exportfs", "modprobe"):
            if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
                missing(f"the program {name}")
        library = folder / "ptrace.so"
        options = ["-O2", "-shared", "-fPIC", "-o", str(library)]
        subprocess.run([need_tool("cc"), *options, str(HERE / "ptrace.c"), "-ldl"], check=True)
        package = Path(pagestream.__file__).parents[1]
        command = [
            linux,
            f"mem={MEMORY_BYTES >> 20}M",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            f"init={HERE / 'init.sh'}",
            f"uml_dir={folder}/uml",
            "con=null",
            "con0=null,fd:1",
            "ssl=null",
            f"GUEST_FOLDER={folder}",
            f"GUEST_PROGRAM={program}",
            f"GUEST_PYTHON={sys.executable}",
            f"GUEST_PATH={package}:{Path(__file__).parents[1]}",
        ]
        variables = {**os.environ, "LD_PRELOAD": str(library)}
        # The guest's memory is a file in /dev/shm, which is often smaller in a container.
        if shutil.disk_usage("/dev/shm").free < 1.2 * MEMORY_BYTES:
            variables["TMPDIR"] = str(folder)
        with (folder / "kernel").open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables,
                start_new_session=True,
            )

    def close(self):
        """Kills the guest if it is still running."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
