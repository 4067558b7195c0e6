"""Filling fresh staging memory, on huge pages and on small pages."""

from functools import partial
from pathlib import Path

import numpy as np
from harness import Row, compare

from pagestream import StagingBuffer

TITLE = "staging memory: allocate, fill once, free"


def fill(huge_pages: str, source: np.ndarray) -> None:
    buffer = StagingBuffer(source.nbytes, huge_pages=huge_pages)
    np.frombuffer(buffer, "u1")[:] = source
    assert np.array_equal(np.frombuffer(buffer, "u1")[::4096], source[::4096])


def measure(_folder: Path) -> list[Row]:
    rows = []
    for mebibytes in (1, 2, 4, 8, 64):
        source = np.ones(mebibytes << 20, "u1")

        def by_bytearray(source: np.ndarray = source) -> None:
            np.frombuffer(bytearray(source.nbytes), "u1")[:] = source

        rows.append(
            compare(
                f"{mebibytes} MiB",
                {
                    "auto": partial(fill, "auto", source),
                    "huge pages": partial(fill, "always", source),
                    "small pages": partial(fill, "never", source),
                    "bytearray (malloc may hand out used memory again)": by_bytearray,
                },
            )
        )
    return rows
