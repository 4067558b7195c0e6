"""The time in which each rank of a large group finds out what it reads, and what it sends to others."""

import json
import time
from collections.abc import Callable

from harness import Row

from pagestream.torch._shares import Box, Request, SharedTensor, rounds, shared

TITLE = "plans of large groups, without reading anything: matrices of 256 MiB, rounds of 256 MiB"
SHAPE = (8192, 32768)
ROUND_BYTES, ROUNDS = 256 << 20, 3


def rows(rank: int, ranks: int) -> Box:
    extent = SHAPE[0] // ranks
    return (rank * extent, (rank + 1) * extent), (0, SHAPE[1])


def whole(rank: int, ranks: int) -> Box:
    del rank, ranks
    return (0, SHAPE[0]), (0, SHAPE[1])


WANTS: dict[str, Callable[[int, int], Box]] = {"rows of its own": rows, "everything": whole}
CASES = {
    f"{ranks} ranks, {tensors:,} tensors, each wants {what}": (ranks, tensors, box_of)
    for ranks, tensors in ((8, 1000), (64, 1000), (256, 300))
    for what, box_of in WANTS.items()
}


def measure(folder: object, cases: list[str]) -> list[Row]:
    del folder
    return [planned(name, *CASES[name]) for name in cases]


def planned(name: str, ranks: int, tensors: int, box_of: Callable[[int, int], Box]) -> Row:
    seconds, plan_bytes = [], 0
    for _ in range(ROUNDS):
        plans = [
            json.dumps(
                [
                    [f"model.layers.{number}.weight", "BF16", SHAPE, box_of(rank, ranks)]
                    for number in range(tensors)
                ]
            )
            for rank in range(ranks)
        ]
        plan_bytes = sum(map(len, plans))
        begun = time.perf_counter()
        for plan in set(plans):
            json.loads(plan)
        requests = tuple(Request(rank, box_of(rank, ranks)) for rank in range(ranks))
        shares = [SharedTensor(SHAPE, requests)] * tensors
        pieces = shared(shares, ranks, ROUND_BYTES)
        count = len(list(rounds(pieces, ranks, ROUND_BYTES)))
        seconds.append(time.perf_counter() - begun)
    remark = f"{plan_bytes / 1e6:.1f} MB of plans, {len(pieces):,} pieces in {count:,} rounds"
    return Row(name, "pagestream", {"pagestream": seconds}, remarks={"pagestream": remark})
