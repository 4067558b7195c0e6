"""Fixtures: a token file, a weight file, and real mounts."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `support`

from support import real

TOKENS = np.arange(4096, dtype="u2")


@pytest.fixture
def token_file(tmp_path):
    """4096 tokens, each its own position."""
    path = tmp_path / "tokens.bin"
    TOKENS.tofile(path)
    return path


@pytest.fixture
def big_file(tmp_path):
    """16 MiB in which each 8 bytes hold their own number."""
    path = tmp_path / "big.bin"
    np.arange(2 << 20, dtype="u8").tofile(path)
    return path


@pytest.fixture
def direct_mount(tmp_path):
    """A FUSE mount with direct_io over `tmp_path / "source"`: MAP_SHARED is refused with ENODEV."""
    source = tmp_path / "source"
    source.mkdir()
    with real.bindfs(source, tmp_path / "direct", "direct_io") as mount:
        yield mount


@pytest.fixture
def cached_mount(tmp_path):
    """A FUSE mount with a page cache over `tmp_path / "source"`."""
    source = tmp_path / "source"
    source.mkdir()
    with real.bindfs(source, tmp_path / "cached") as mount:
        yield mount


@pytest.fixture
def sftp_mount(tmp_path):
    """sshfs over `tmp_path / "source"`."""
    source = tmp_path / "source"
    source.mkdir()
    with real.sshfs(source, tmp_path / "sftp") as mount:
        yield mount
