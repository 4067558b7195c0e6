"""Fixtures: a token file, a weight file, and real mounts."""

import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `support`

from support import real

TOKENS = np.arange(4096, dtype="u2")

# What a shell without job control starts in the background ignores Ctrl-C, which tests send to programs.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session):
    """Boots the guest before the first test: its checks take minutes, in which it waits most of the time."""
    if session.config.option.collectonly or not any(
        item.path.name == "test_nfs.py" for item in session.items
    ):
        return
    from support.nfs_guest import GUEST, Guest

    folder = tempfile.TemporaryDirectory(prefix="guest-", ignore_cleanup_errors=True)
    session.config.add_cleanup(folder.cleanup)
    try:
        guest = Guest(Path(__file__).parent / "support/nfs_checks.py", Path(folder.name))
    except BaseException as error:  # noqa: BLE001 - the tests that need it fail, or are skipped
        guest = error
    else:
        session.config.add_cleanup(guest.close)
    session.config.stash[GUEST] = Path(folder.name), guest


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
