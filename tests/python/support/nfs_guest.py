"""A User Mode Linux guest: a kernel as a process, with a true NFS client and server, on the host's file tree.

Debian's packages user-mode-linux, nfs-kernel-server, kmod and iproute2 have what it needs; neither KVM nor a
network is needed.
"""

import os
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
# The key by which pytest keeps the folder of the guest, and the guest, or the exception of its beginning.
GUEST = pytest.StashKey()
MEMORY_BYTES = 1 << 30
# To boot and to mount takes about six seconds on an idle processor.
BOOT_SECONDS = 120


def boot(config):
    """Boots the guest of `nfs_checks`, until the end of the session."""
    folder = tempfile.TemporaryDirectory(prefix="guest-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    try:
        guest = Guest(Path(__file__).parent / "nfs_checks.py", Path(folder.name))
    except BaseException as error:  # noqa: BLE001 - the tests that need it fail, or are skipped
        guest = error
    else:
        config.add_cleanup(guest.close)
    config.stash[GUEST] = Path(folder.name), guest


def run_in_guest(program, folder, seconds):
    """Runs a Python program in a new guest, which shows `folder` as /mnt/out. Returns what it printed."""
    return Guest(program, folder).console(seconds)


class Guest:
    """A guest that runs a Python program, and shows it `folder` as /mnt/out."""

    def __init__(self, program, folder):
        """Boots. The guest ends with the program."""
        self._folder = folder
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
        # The guest's memory is a file. In a container /dev/shm is often smaller.
        if shutil.disk_usage("/dev/shm").free < 1.2 * MEMORY_BYTES:
            variables["TMPDIR"] = str(folder)
        with (folder / "kernel").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables,
                start_new_session=True,
            )

    def console(self, seconds):
        """Waits for the end, and returns what was printed. A guest that is late is killed."""
        try:
            self._process.wait(BOOT_SECONDS + seconds)
        except subprocess.TimeoutExpired:
            self.close()
        console = self._folder / "console"
        if not console.exists():
            text = (self._folder / "kernel").read_text(errors="replace")
            missing(f"a User Mode Linux guest (its kernel says: {text[-2000:]})")
        return console.read_text(errors="replace")

    def close(self):
        """Kills the guest, if it has not ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
