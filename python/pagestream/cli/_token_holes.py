"""Holes in token files: bytes that a stopped download has not written. They read as token 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagestream.files.holes import described, holes_of
from pagestream.files.mapped_file import MappedFile

if TYPE_CHECKING:
    from pagestream.tokens.corpus import TokenCorpus


def hole_warnings(tokens: TokenCorpus) -> list[str]:
    """Returns a warning for each file with holes. Skips files on FUSE mounts, as for checkpoints."""
    found = []
    for path in dict.fromkeys(shard.path for shard in tokens.shards):
        with MappedFile(path) as file:
            if file.file_system.type.startswith(("fuse", "virtiofs")):
                continue
            holes = holes_of(path, 0, file.size)
        if holes:
            found.append(
                f"{path}: {described(holes)}. Copy the file again if its download stopped early. "
                "Zeros that are stored sparsely are holes, too"
            )
    return found
