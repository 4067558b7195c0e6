"""A checkpoint on two slow mounts: one with a page cache, and one without."""

import contextlib

from pagestream import MappedFile

from support import real


@contextlib.contextmanager
def slow_mounts(folder, tmp_path):
    """Shows a folder on both mounts. Yields the mounts and the total size of the safetensors files."""
    total_bytes = 0
    for path in folder.glob("*.safetensors"):
        with MappedFile(path) as file:
            file.evict()
            total_bytes += file.size
    with contextlib.ExitStack() as stack:
        mounts = [
            stack.enter_context(real.slow_fuse(folder, tmp_path / name, direct_io=direct, gather=10))
            for name, direct in (("cached", False), ("direct_io", True))
        ]
        yield mounts, total_bytes
