"""Ranks of a process group that load a checkpoint together. Each rank has its own mount, as nodes do."""

import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cold import ROOT, TOUCHED_BYTES, example, read_all
from fresh import USUAL_REQUEST_BYTES, Load, alternate
from harness import Row
from load_weights import used
from weight_files import write_parts, written

sys.path.append(str(ROOT / "tests/python"))  # the tests start ranks and mount the same file system
from support import real
from support.ranks import run_ranks

TITLE = "a checkpoint of 512 MiB in 4 shards, loaded by ranks of which each is a node with a mount of its own"
SHARDS, TENSORS, SHAPE = 4, 16, (2048, 2048)
# The number of ranks that have saved the checkpoint, each to its own file.
WRITERS = 8
WHOLE_BYTES = SHARDS * TENSORS * SHAPE[0] * SHAPE[1] * 2
ROUNDS = 3
# The bandwidth of a store for all nodes together, and the delay of a request on the nodes' own mounts.
STORE_BYTES_PER_SECOND, DELAY_MS = 128 << 20, 10
MOST_TIME, MOST_BYTES, MOST_BYTES_OF_PARTS = 1.15, 1.05, 1.2


@dataclass(frozen=True)
class Case:
    """Ranks that load in several ways, ours first. Either one store serves all ranks, or each mount is slow.

    If the files are parts, each file has rows of every matrix.
    """

    ranks: int
    ways: tuple[str, ...]
    goal: float
    most_bytes: float = MOST_BYTES
    has_store: bool = False
    has_parts: bool = False


WHOLE = tuple(
    f"whole: {way}"
    for way in ("stream, process_group", "stream, each for itself", "safetensors, each for itself")
)
READERS = (
    "our reader",
    "our reader, read_once=False",
    "torch's reader, 1 thread",
    "torch's reader, 8 threads",
)
FSDP2 = tuple(f"FSDP2: {way}" for way in READERS)
COLUMNS = ("stream, process_group", *READERS, "safetensors slices")
READS = "FSDP2: the reads alone"
CASES = {f"{count} nodes on one store": Case(count, WHOLE, 1.0, has_store=True) for count in (1, 2, 4, 8)} | {
    "an FSDP2 model, 4 ranks": Case(4, (*FSDP2, READS), 5.0),
    f"an FSDP2 model, saved by {WRITERS} ranks, 4 ranks": Case(4, FSDP2, 5.0, has_parts=True),
    "columns of each matrix, 4 ranks": Case(
        4, tuple(f"columns: {way}" for way in COLUMNS), 5.0, MOST_BYTES_OF_PARTS
    ),
}


def measure(folder: Path, cases: list[str]) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        source = Path(inner) / "source"
        tensors = written(source, shards=SHARDS, tensors=TENSORS, shape=SHAPE)
        sums = {name: used(array) for name, array in tensors}
        parts = Path(inner) / "parts"
        write_parts(source, parts, WRITERS)
        one_node: list[float] = []
        for name in cases:
            case = CASES[name]
            found = alternate(
                list(case.ways),
                partial(load, case=case, source=parts if case.has_parts else source, sums=sums),
                rounds=ROUNDS,
            )
            ours, *rivals = case.ways
            figures = {way: [each.seconds for each in loads] for way, loads in found.items()}
            goals = {
                way: case.goal for way in rivals if not any(word in way for word in ("our", "stream", READS))
            }
            one_node = figures[ours] if case.has_store and case.ranks == 1 else one_node
            if case.has_store and case.ranks > 1 and one_node:
                figures["1 node"] = one_node
                goals["1 node"] = 1 / MOST_TIME
            share = {
                way: [each.delivered_bytes / WHOLE_BYTES for each in loads] for way, loads in found.items()
            }
            remarks = {
                way: f"{statistics.median(each):.2f} of the bytes delivered" for way, each in share.items()
            }
            rows.append(Row(name, ours, figures, goals=goals, limits=["1 node", READS], remarks=remarks))
            what = f"{name}, bytes delivered for one of the checkpoint"
            rows.append(Row(what, ours, {ours: share[ours]}, "", goals={ours: case.most_bytes}))
    return rows


def load(way: str, case: Case, source: Path, sums: dict[str, int]) -> Load:
    read_all(source)
    with tempfile.TemporaryDirectory() as results, ExitStack() as mounts:
        behind = source
        store = None
        if case.has_store:
            # The store has no page cache: it delivers bytes again for each node that requests them.
            store = mounted(mounts, source, "store", direct_io=True, bandwidth_bytes=STORE_BYTES_PER_SECOND)
            behind = store.path
        delay = 0 if case.has_store else DELAY_MS
        nodes = [
            mounted(mounts, behind, f"{source.name}-node{rank}", source.parent, delay_ms=delay)
            for rank in range(case.ranks)
        ]
        program = Path(__file__).with_name("rank_weights.py")
        environment = {TOUCHED_BYTES: str(2 * WHOLE_BYTES)}
        run_ranks(case.ranks, program, way, results, *(node.path for node in nodes), environment=environment)
        found = [json.loads((Path(results) / str(rank)).read_text()) for rank in range(case.ranks)]
        mounts.close()
    check(way, found, sums)
    delivered = [store] if store else nodes
    return Load(
        seconds=max(each["seconds"] for each in found),
        first_seconds=0.0,
        delivered_bytes=sum(mount.counts["read_bytes"] for mount in delivered),
    )


def mounted(
    mounts: ExitStack, behind: Path, name: str, place: Path | None = None, **options: Any
) -> real.SlowMount:
    mount = real.slow_fuse(
        behind,
        (place or behind.parent) / name,
        request_bytes=USUAL_REQUEST_BYTES,
        program=example("slow_fuse"),
        **options,
    )
    return mounts.enter_context(mount)


def check(way: str, found: list[dict[str, Any]], sums: dict[str, int]) -> None:
    """Checks that each rank has all tensors, or that all ranks together have them once."""
    if way.startswith("whole"):
        is_right = all(each["sums"] == sums for each in found)
    else:
        together = {name: sum(each["sums"][name] for each in found) % 2**64 for name in sums}
        is_right = together == {name: each % 2**64 for name, each in sums.items()}
    if not is_right:
        message = f"{way} gave other bytes"
        raise AssertionError(message)
