"""Token files of each format, written byte by byte as their projects do, without pagestream's code."""

from __future__ import annotations

import os
import struct

import numpy as np

MEGATRON_CODES = {"u1": 1, "i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8, "<u4": 9, "<u8": 10}


def llmc_bytes(tokens, magic=None, version=None, count=None, rest=b"\0"):
    """Returns a header of 256 words and the tokens. `rest` fills the words that readers must ignore."""
    tokens = np.asarray(tokens)
    known = {"uint16": (20240520, 1), "uint32": (20240801, 7)}.get(tokens.dtype.name, (20240520, 1))
    words = (
        known[0] if magic is None else magic,
        known[1] if version is None else version,
        len(tokens) if count is None else count,
    )
    return struct.pack("<3i", *words) + (rest * 1012)[:1012] + tokens.tobytes()


def megatron_index(
    lengths,
    documents,
    item_bytes,
    code,
    *,
    version=1,
    magic=b"MMIDIDX\0\0",
    pointers=None,
    sequences=None,
    entries=None,
    modes=b"",
):
    """Returns an `.idx` file. `documents` are sequence numbers from 0 to the sequence count."""
    lengths = np.asarray(lengths, "<i4")
    if pointers is None:
        pointers = np.concatenate(([0], np.cumsum(lengths, dtype="<i8")))[: len(lengths)] * item_bytes
    return b"".join(
        [
            magic,
            struct.pack("<Q", version),
            bytes([code]),
            struct.pack(
                "<QQ",
                len(lengths) if sequences is None else sequences,
                len(documents) if entries is None else entries,
            ),
            lengths.tobytes(),
            np.asarray(pointers, "<i8").tobytes(),
            np.asarray(documents, "<i8").tobytes(),
            modes,
        ]
    )


def write_file(path, content):
    with open(path, "wb") as file:
        file.write(content)
    return os.fspath(path)


def write_megatron(stem, tokens, lengths, documents=None, **changes):
    """Writes both files and returns the stem as a str."""
    tokens = np.asarray(tokens)
    documents = range(len(lengths) + 1) if documents is None else documents
    arguments = {
        "item_bytes": tokens.itemsize,
        "code": MEGATRON_CODES[tokens.dtype.str.replace("|", "")],
        **changes,
    }
    write_file(f"{stem}.idx", megatron_index(lengths, list(documents), **arguments))
    write_file(f"{stem}.bin", tokens.tobytes())
    return os.fspath(stem)


def write_datatrove(path, tokens, ends=None, metadata=None):
    tokens = np.asarray(tokens)
    write_file(path, tokens.tobytes())
    if ends is not None:
        write_file(f"{path}.index", np.asarray(ends, "<u8").tobytes())
    if metadata is not None:
        write_file(f"{path}.metadata", metadata.encode() if isinstance(metadata, str) else metadata)
    return os.fspath(path)
