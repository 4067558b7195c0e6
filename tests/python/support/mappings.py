"""This process's mappings of a file, from ``/proc/self/maps``."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class FileMapping:
    start: int
    stop: int
    permissions: str
    offset: int


def mappings_of(path):
    """Returns the memory ranges of this process that map the file."""
    real = os.path.realpath(path)
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        lines = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    return [
        FileMapping(*(int(end, 16) for end in fields[0].split("-")), fields[1], int(fields[2], 16))
        for fields in lines
        if len(fields) == 6 and fields[5] == real
    ]


def place_in_file(array, path):
    """Returns (offset in the file, permissions) of the mapping that contains an array or tensor, or None."""
    address = array.data_ptr() if hasattr(array, "data_ptr") else array.__array_interface__["data"][0]
    for mapping in mappings_of(path):
        if mapping.start <= address and address + array.nbytes <= mapping.stop:
            return mapping.offset + address - mapping.start, mapping.permissions
    return None


def flags_of(path):
    """Returns the two-letter flags of this process's mappings of a file (VmFlags in proc_pid_smaps(5))."""
    with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as smaps:
        lines = smaps.read().splitlines()
    flags = [set(line.split()[1:]) for line in lines if line.startswith("VmFlags:")]
    heads = [line for line in lines if line[0] in "0123456789abcdef" and "-" in line.split()[0]]
    real = os.path.realpath(path)
    return [found for head, found in zip(heads, flags, strict=True) if head.endswith(f" {real}")]


def written_bytes_of(path):
    """Returns the bytes of this process's memory that replace pages of the file after writes."""
    real, total, is_inside = os.path.realpath(path), 0, False
    with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as smaps:
        for line in smaps:
            fields = line.split(maxsplit=5)
            if "-" in fields[0]:
                is_inside = len(fields) == 6 and fields[5].rstrip("\n") == real
            elif is_inside and fields[0] == "Anonymous:":
                total += int(fields[1]) * 1024
    return total
