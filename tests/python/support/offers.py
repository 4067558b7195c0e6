"""Names at which processes of this user offer open files to one another."""

import ctypes
import hashlib
import os
import struct
from pathlib import Path

# From linux/keyctl.h.
KEYCTL_SEARCH, KEYCTL_READ, KEY_SPEC_USER_KEYRING = 10, 11, -4
SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
SECRET_BYTES = 16


def secret():
    """Returns the secret of this user from the kernel's keyring, or zeros where the kernel keeps none."""
    keyctl, found = ctypes.CDLL(None).syscall, ctypes.create_string_buffer(SECRET_BYTES)
    key = keyctl(SYS_KEYCTL, KEYCTL_SEARCH, KEY_SPEC_USER_KEYRING, b"user", b"pagestream", 0)
    if key > 0:
        assert keyctl(SYS_KEYCTL, KEYCTL_READ, key, found, SECRET_BYTES) == SECRET_BYTES
    return found.raw


def name_from(what, *numbers, known=None, process="self"):
    """Returns the name that follows from a secret, the mounts of a process, and numbers."""
    mounts = [os.stat(f"/proc/{process}/{place}") for place in ("ns/mnt", "root")]
    places = [number for place in mounts for number in (place.st_dev, place.st_ino)]
    packed = struct.pack(f"={len(places) + len(numbers)}Q", *places, *numbers)
    found = hashlib.sha256((secret() if known is None else known) + packed).hexdigest()[: 2 * SECRET_BYTES]
    return f"pagestream/{os.geteuid()}/{what}/{found}"


def name_of(path, **options):
    """Returns the name at which a file is offered."""
    found = os.stat(path)
    return name_from("file", found.st_dev, found.st_ino, **options)


def names_in_use():
    """Returns all abstract names of sockets. Each connection has its name as well."""
    last_words = (line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines())
    return {word[1:] for word in last_words if word.startswith("@")}


def offers(folder):
    """Returns the names at which processes offer the files of a folder."""
    return sorted({name_of(path) for path in Path(folder).iterdir()} & names_in_use())


def signs(folder):
    """Returns the names by which processes say that they read files of a mount ahead."""
    beginning = name_from("ahead", os.stat(folder).st_dev) + "/"
    return sorted(name for name in names_in_use() if name.startswith(beginning))
