"""Copying ranges from a cached file, compared with the usual alternatives."""

import os
from pathlib import Path

import numpy as np
from harness import Row, compare

from pagestream import MappedFile

TITLE = "copies out of a file, page cache warm, random places"
FILE_BYTES = 256 << 20


def measure(folder: Path) -> list[Row]:
    path = folder / "bytes"
    np.random.default_rng(0).integers(0, 256, FILE_BYTES, "u1").tofile(path)
    memmap = np.memmap(path, "u1", "r")
    descriptor = os.open(path, os.O_RDONLY)
    rows = []
    for length in (512, 2050, 8194, 1 << 20, 64 << 20):
        offsets = np.random.default_rng(1).integers(0, FILE_BYTES - length, 64).tolist()
        out = np.empty(length, "u1")
        mapped, read = MappedFile(path), MappedFile(path, mode="read")

        def ours(f: MappedFile = mapped, out: np.ndarray = out, offsets: list[int] = offsets) -> None:
            for offset in offsets[: max(1, (8 << 20) // len(out))]:
                f.read_into(out, offset)

        def by_memmap(out: np.ndarray = out, offsets: list[int] = offsets, length: int = length) -> None:
            for offset in offsets[: max(1, (8 << 20) // length)]:
                out[:] = memmap[offset : offset + length]

        def by_pread(out: np.ndarray = out, offsets: list[int] = offsets) -> None:
            for offset in offsets[: max(1, (8 << 20) // len(out))]:
                os.preadv(descriptor, [out], offset)

        for offset in offsets:
            expected = memmap[offset : offset + length]
            mapped.read_into(out, offset)
            assert np.array_equal(out, expected)
            read.read_into(out, offset)
            assert np.array_equal(out, expected)
        rows.append(
            compare(
                f"{min(64, max(1, (8 << 20) // length))} x {length:,} bytes",
                {"MappedFile.read_into": ours, "np.memmap slice": by_memmap, "os.preadv": by_pread},
            )
        )
    os.close(descriptor)
    return rows
