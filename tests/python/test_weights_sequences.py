"""Parts of tensors that are requested in sequence, such as the experts of a layer."""

import itertools
import random

import numpy as np
import pytest
from safetensors.numpy import save_file

from pagestream.errors import FileChangedError
from pagestream.safetensors import safe_open

from support import real
from support.weight_files import changed_in_place

MIB = 1 << 20
LAYERS, EXPERTS, EXPERT_BYTES = 24, 16, 64 << 10
WHOLE = LAYERS * EXPERTS * EXPERT_BYTES
REQUEST_BYTES = 128 << 10

direct_or_cached = pytest.mark.parametrize("direct", [False, True], ids=["cached", "direct_io"])


def weights(number=0):
    generator = np.random.default_rng(number)
    return {
        f"layers.{layer:02}.experts": generator.integers(0, 256, (EXPERTS, EXPERT_BYTES), dtype=np.uint8)
        for layer in range(LAYERS)
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    save_file(weights(), folder / "model.safetensors")
    return folder


def compared(path, steps, **options):
    """Reads the rows of each tensor as slices, and compares them."""
    expected = weights()
    with safe_open(path, "np", **options) as file:
        for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
            part = file.get_slice(name)
            for index in steps:
                assert np.array_equal(part[index], expected[name][index]), (name, index)


@direct_or_cached
def test_experts_are_read_in_pieces_and_once(source, tmp_path, direct):
    with real.slow_fuse(source, tmp_path / "mount", delay_ms=1, gather=4, direct_io=direct) as slow:
        compared(slow.path / "model.safetensors", range(EXPERTS))
    assert WHOLE <= slow.counts["read_bytes"] <= WHOLE + MIB
    if direct:
        # The kernel may split reads through the page cache.
        assert slow.counts["read_requests"] <= 1.2 * WHOLE / REQUEST_BYTES
    assert slow.counts["most_in_flight"] >= 4


@direct_or_cached
@pytest.mark.parametrize(
    "steps",
    [
        range(0, EXPERTS, 3),
        range(EXPERTS - 1, -1, -1),
        [0, 9],
        [slice(row, row + 3) for row in range(0, 15, 3)],
    ],
    ids=["every third", "backwards", "two", "three at a time"],
)
def test_others_read_little_more_than_they_use(source, tmp_path, direct, steps):
    with real.slow_fuse(source, tmp_path / "mount", delay_ms=1, direct_io=direct) as slow:
        compared(slow.path / "model.safetensors", steps)
    used = LAYERS * sum(len(range(EXPERTS)[step]) if isinstance(step, slice) else 1 for step in steps)
    # Each step may cost one request of the kernel's read-ahead.
    least = used * EXPERT_BYTES + LAYERS * len(steps) * REQUEST_BYTES * (not direct)
    assert slow.counts["read_bytes"] <= 2 * least + MIB


def test_without_a_lead_nothing_is_read_ahead_and_a_lead_keeps_its_limit(source, tmp_path):
    path = tmp_path / "mount/model.safetensors"
    read = {}
    for ahead in (False, 4 * EXPERT_BYTES):
        with (
            real.slow_fuse(source, tmp_path / "mount", delay_ms=1, direct_io=True) as slow,
            safe_open(path, "np", ahead=ahead) as file,
        ):
            part = file.get_slice("layers.00.experts")
            for expert in range(3):
                part[expert].sum()
        read[ahead] = slow.counts["read_bytes"]
    assert read[False] <= 3 * EXPERT_BYTES + MIB // 2
    assert read[4 * EXPERT_BYTES] <= 5 * EXPERT_BYTES + MIB // 2


def test_a_file_that_is_rewritten_meanwhile_is_an_error(tmp_path):
    path = tmp_path / "source/model.safetensors"
    path.parent.mkdir()
    save_file(weights(), path)
    old = weights()
    with (
        real.slow_fuse(path.parent, tmp_path / "mount", delay_ms=1, direct_io=True) as slow,
        safe_open(slow.path / "model.safetensors", "np") as file,
    ):
        rows = ((name, expert) for name in file.keys() for expert in range(EXPERTS))  # noqa: SIM118
        for name, expert in itertools.islice(rows, 5):
            assert np.array_equal(file.get_slice(name)[expert], old[name][expert])

        def rewrite():
            with path.open("r+b") as written:
                written.seek(path.stat().st_size - WHOLE)
                written.write(b"".join(each.tobytes() for each in weights(1).values()))

        changed_in_place(path, rewrite)

        def go_on():
            for name, expert in rows:
                assert np.array_equal(file.get_slice(name)[expert], old[name][expert]), "new bytes"

        with pytest.raises(FileChangedError):
            go_on()


@direct_or_cached
def test_rows_that_are_picked_at_random_share_what_a_page_fault_brings(tmp_path, direct):
    rows, row_bytes, picked = 1024, 1024, 200
    source = tmp_path / "source"
    source.mkdir()
    table = np.random.default_rng(0).integers(0, 256, (rows, row_bytes), np.uint8)
    whole = {"embedding": table, "others": np.zeros(2 * MIB, np.uint8)}
    save_file(whole, source / "model.safetensors")
    with (
        real.slow_fuse(source, tmp_path / "mount", delay_ms=2, direct_io=direct) as slow,
        safe_open(slow.path / "model.safetensors", "np") as file,
    ):
        part = file.get_slice("embedding")
        for row in random.Random(0).choices(range(rows), k=picked):
            np.testing.assert_array_equal(part[row : row + 1], table[row : row + 1])
    assert slow.counts["read_requests"] <= picked / 4
