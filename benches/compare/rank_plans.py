"""How long each rank of a large group takes to find out which bytes it reads and sends."""

import json
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

from harness import Row

import pagestream
from pagestream.torch._agreement import told
from pagestream.torch._exchange import byte_box, work_of
from pagestream.weights import arrays, streaming
from pagestream.weights.checkpoint import native_files

TITLE = "plans of large groups, without reading anything: matrices of 32 MiB, rounds of 256 MiB"
ROWS, COLUMNS = 4096, 4096
ROUND_BYTES, ROUNDS = 256 << 20, 3
# The matrices of a layer in a model with many experts.
EXPERTS = 128

# The part of a tensor that a rank wants: None for the whole tensor, False for nothing.
Part = slice | tuple[slice, ...] | bool | None


def rows(rank: int, ranks: int, number: int) -> Part:
    del number
    extent = ROWS // ranks
    return slice(rank * extent, (rank + 1) * extent)


def columns(rank: int, ranks: int, number: int) -> Part:
    del number
    extent = COLUMNS // ranks
    return slice(None), slice(rank * extent, (rank + 1) * extent)


def rows_in_turn(rank: int, ranks: int, number: int) -> Part:
    del number
    return slice(rank, None, ranks)


def experts(rank: int, ranks: int, number: int) -> Part:
    """Each rank wants its own experts, and all ranks want one more matrix of each layer."""
    return None if number % EXPERTS == 0 or number % ranks == rank else False


def everything(rank: int, ranks: int, number: int) -> Part:
    del rank, ranks, number
    return None


WANTS: dict[str, Callable[[int, int, int], Part]] = {
    "rows of its own": rows,
    "columns of its own": columns,
    "rows in turn": rows_in_turn,
    "experts of its own": experts,
    "everything": everything,
}
CASES = {
    f"{ranks} ranks, {tensors:,} tensors, each wants {what}": (ranks, tensors, part_of)
    for ranks, tensors in ((8, 1000), (64, 1000), (64, 46_000), (256, 1000))
    for what, part_of in WANTS.items()
}


class Said:
    """Stands in for the meeting of ranks: it holds the messages of all ranks."""

    def __init__(self, ranks: int, said: list[tuple[str, str]]) -> None:
        self.rank, self.size = 0, ranks
        named, wants = ([each[place] for each in said] for place in range(2))
        self._packed = {"tensors": packed(named), "wants": packed(wants)}

    def gather(self, name: str, payload: str) -> list[str]:
        """Unpacks the messages like a meeting, but without the network."""
        zlib.compress(payload.encode())
        of_ranks, once = self._packed[name]
        unpacked = {number: zlib.decompress(each).decode() for number, each in once.items()}
        return [unpacked[number] for number in of_ranks]

    @property
    def sent_bytes(self) -> int:
        """Returns the bytes that a rank receives from the store."""
        return sum(len(each) for _, once in self._packed.values() for each in once.values())


def packed(said: list[str]) -> tuple[list[int], dict[int, bytes]]:
    """Returns the message of each rank, where equal messages appear once."""
    numbers: dict[str, int] = {}
    of_ranks = [numbers.setdefault(each, len(numbers)) for each in said]
    return of_ranks, {number: zlib.compress(each.encode()) for each, number in numbers.items()}


def measure(folder: Path, cases: list[str]) -> list[Row]:
    return [planned(folder, name, *CASES[name]) for name in cases]


def write(path: Path, tensors: int) -> None:
    """Writes a file with a header and with no stored data."""
    nbytes = 2 * ROWS * COLUMNS
    header = json.dumps(
        {
            f"model.layers.{number // EXPERTS}.mlp.experts.{number % EXPERTS}.down_proj.weight": {
                "dtype": "BF16",
                "shape": [ROWS, COLUMNS],
                "data_offsets": [number * nbytes, (number + 1) * nbytes],
            }
            for number in range(tensors)
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + tensors * nbytes)


def planned(
    folder: Path, name: str, ranks: int, tensors: int, part_of: Callable[[int, int, int], Part]
) -> Row:
    path = folder / "model.safetensors"
    write(path, tensors)
    seconds = []
    with pagestream.open_checkpoint(path) as weights:
        infos, framework = [weights.info(each) for each in weights], arrays.NumpyArrays()

        def plan(rank: int) -> list[streaming.Wanted]:
            parts = [(info, part_of(rank, ranks, number)) for number, info in enumerate(infos)]
            return [
                streaming.planned_part(info, part, framework) for info, part in parts if part is not False
            ]

        said = []
        for rank in range(ranks):
            if rank and part_of is everything:
                said.append(said[0])
                continue
            wanted = plan(rank)
            said.append(told(wanted, [byte_box(each) for each in wanted]))
        meeting, wanted = Said(ranks, said), plan(0)
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            targets, lots, reads = work_of(meeting, native_files(weights), wanted, ROUND_BYTES)
            seconds.append(time.perf_counter() - begun)
            assert len(targets) == len(wanted)
        del targets, lots, reads
        tracemalloc.start()
        found = work_of(meeting, native_files(weights), wanted, ROUND_BYTES)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    path.unlink()
    _, lots, reads = found
    shared = sum(len(each.shared) for each in lots)
    remark = (
        f"{meeting.sent_bytes / 1e6:.1f} MB from the store, {shared:,} shared pieces in {len(lots):,} "
        f"rounds, {len(reads):,} reads, {peak_bytes / 1e6:.0f} MB of memory"
    )
    return Row(name, "pagestream", {"pagestream": seconds}, remarks={"pagestream": remark})
