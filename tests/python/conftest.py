"""Fixtures: a token file, a weight file, and real mounts."""

import gc
import os
import re
import signal
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `support`

from support import real

TOKENS = np.arange(4096, dtype="u2")

# All runs try the same examples, even if an example takes long. `--hypothesis-profile default` draws others.
hypothesis.settings.register_profile(
    "same examples",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same examples")

# Test processes share the processors, and waiting threads of these libraries would spin.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# A shell without job control starts background processes with Ctrl-C ignored, but tests send it to programs.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# These files take minutes. They come first, so that the test processes finish at about the same time.
LONG = (
    "test_weights_memory.py",
    "test_costs.py",
    "test_safetensors_clients.py",
    "test_demo.py",
    "test_packaging.py",
    "test_torch_ranks.py",
)
# This file waits for the guest, which boots before the first test. It therefore comes last.
LAST = "test_nfs.py"


# `--quick` leaves these out.
LONG_MARKS = {"demo", "frameworks", "slow", "stress"}
IMPORTS_FRAMEWORK = re.compile(
    r"^(import|from) ([\w.]*\btorch\b|transformers|support\.(late_device|ranks|torch_tensors))", re.MULTILINE
)


def pytest_addoption(parser):
    parser.addoption(
        "--quick", action="store_true", help="leave out tests that are long or need torch or other frameworks"
    )


def pytest_ignore_collect(collection_path, config):
    """`--quick` does not even import files that import torch, so it works without torch."""
    if config.option.quick and collection_path.suffix == ".py":
        return IMPORTS_FRAMEWORK.search(collection_path.read_text()) is not None or None
    return None


def pytest_collection_modifyitems(config, items):
    if config.option.quick:
        items[:] = [
            item for item in items if LONG_MARKS.isdisjoint(mark.name for mark in item.iter_markers())
        ]
    places = {name: place for place, name in enumerate(LONG)} | {LAST: len(LONG) + 1}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))


def freeze():
    """Hides all existing objects from the garbage collector.

    A collection in a test would otherwise traverse all of them. After many tests with several frameworks, one
    collection takes 0.5 s or more.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Freezes again after the last test of each file, because the file may have imported a framework."""
    if nextitem is None or nextitem.path != item.path:
        freeze()


def pytest_unconfigure():
    """Lets Python collect the objects at exit. nanobind's modules would otherwise report them as leaks."""
    gc.unfreeze()


def pytest_collection_finish(session):
    """Boots the guest before the first test, because its checks take minutes and mostly wait."""
    freeze()
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and not session.config.option.collectonly:
        _boot_if_needed(session.config, [item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Under pytest-xdist, the controller boots the guest and tells each worker its folder."""
    from support import nfs_guest

    node.workerinput["guest_folder"] = str(nfs_guest.folder_of(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node, ids):
    _boot_if_needed(node.config, ids)


def _boot_if_needed(config, ids):
    if any("test_nfs.py::" in each for each in ids):
        from support import nfs_guest

        nfs_guest.boot(config)


@pytest.fixture
def token_file(tmp_path):
    """Returns a file of 4096 tokens. Each token equals its position."""
    path = tmp_path / "tokens.bin"
    TOKENS.tofile(path)
    return path


@pytest.fixture
def big_file(tmp_path):
    """Returns a file of 16 MiB. Each 8 bytes hold their own number."""
    path = tmp_path / "big.bin"
    np.arange(2 << 20, dtype="u8").tofile(path)
    return path


@pytest.fixture
def direct_mount(tmp_path):
    """Yields a FUSE mount of `tmp_path / "source"` with direct_io, which refuses MAP_SHARED with ENODEV."""
    source = tmp_path / "source"
    source.mkdir()
    with real.bindfs(source, tmp_path / "direct", "direct_io") as mount:
        yield mount


@pytest.fixture
def cached_mount(tmp_path):
    """Yields a FUSE mount of `tmp_path / "source"` with a page cache."""
    source = tmp_path / "source"
    source.mkdir()
    with real.bindfs(source, tmp_path / "cached") as mount:
        yield mount


@pytest.fixture
def sftp_mount(tmp_path):
    """Yields an sshfs mount of `tmp_path / "source"`."""
    source = tmp_path / "source"
    source.mkdir()
    with real.sshfs(source, tmp_path / "sftp") as mount:
        yield mount
