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

# Each run tries the same examples, however long one takes. `--hypothesis-profile default` tries others.
hypothesis.settings.register_profile(
    "same examples",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same examples")

# Workers share the processors, and threads of these libraries spin while they wait for each other.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# A shell without job control makes background processes ignore Ctrl-C. Tests send it to programs.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Files that take minutes. They come first, so that the processes that share the tests end at the same time.
LONG = (
    "test_weights_memory.py",
    "test_costs.py",
    "test_safetensors_clients.py",
    "test_demo.py",
    "test_packaging.py",
    "test_torch_ranks.py",
)
# It waits for the guest that was booted before the first test, and so comes last.
LAST = "test_nfs.py"


# With `--quick` these are left out.
LONG_MARKS = {"demo", "frameworks", "slow", "stress"}
IMPORTS_FRAMEWORK = re.compile(
    r"^(import|from) ([\w.]*\btorch\b|transformers|support\.(late_device|ranks|torch_tensors))", re.MULTILINE
)


def pytest_addoption(parser):
    parser.addoption(
        "--quick", action="store_true", help="leave out tests that are long or need torch or other frameworks"
    )


def pytest_ignore_collect(collection_path, config):
    """With `--quick` a file that imports torch is not even imported: torch need not be installed."""
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
    """Hides all present objects from the garbage collector.

    A test that collects garbage would walk through every one of them. With all tests and several frameworks
    loaded, one collection takes 0.5 s or more.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Freezes again after the last test of each file, which may have imported a framework."""
    if nextitem is None or nextitem.path != item.path:
        freeze()


def pytest_unconfigure():
    """Lets Python collect the objects at its end: nanobind's modules would report them as leaks."""
    gc.unfreeze()


def pytest_collection_finish(session):
    """Boots the guest before the first test: its checks run for minutes, mostly waiting."""
    freeze()
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and not session.config.option.collectonly:
        _boot_if_needed(session.config, [item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """With pytest-xdist the controller boots the guest, and tells each worker where it is."""
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
    """4096 tokens, each its own position."""
    path = tmp_path / "tokens.bin"
    TOKENS.tofile(path)
    return path


@pytest.fixture
def big_file(tmp_path):
    """16 MiB. Each 8 bytes hold their own number."""
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
