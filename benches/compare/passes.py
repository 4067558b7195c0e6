"""A sequential pass over a cold file of 10 GiB, in new processes: anonymous memory, and bytes read."""

import json
import subprocess
import sys
from pathlib import Path

from cold import evict, token_file
from harness import Row

TITLE = "a sequential pass over a cold file of 10 GiB"
ROUNDS = 2
MOST_GROWTH_MIB = 64
MOST_READ_PER_BYTE_USED = 1.1
BLOCK_TOKENS = 64 * 1024

COMMON = """
import json, sys, time
from pathlib import Path
import numpy as np

def kept(name, path="/proc/self/status"):
    return next(int(line.split()[1]) for line in Path(path).read_text().splitlines() if line.startswith(name))

def report(blocks):
    blocks = iter(blocks)
    before, read, begin = kept("RssAnon"), kept("read_bytes", "/proc/self/io"), time.perf_counter()
    most, tokens, total = 0, 0, 0
    for number, block in enumerate(blocks):
        tokens += block.size
        total += int(block.sum(dtype="u8"))
        if number % 64 == 0:
            most = max(most, kept("RssAnon"))
    read = kept("read_bytes", "/proc/self/io") - read
    found = dict(seconds=time.perf_counter() - begin, growth_mib=(max(most, kept("RssAnon")) - before) / 1024)
    found.update(read_per_byte_used=read / (tokens * 2), total=total, tokens=tokens)
    print(json.dumps(found))
"""

OURS = """
from pagestream import TokenLoader

def batches(path, tokens):
    with TokenLoader(path, sequence_length=1024, batch_size=64, order="sequential", epochs=1) as loader:
        for x, y in loader:
            yield x

report(batches(sys.argv[1], int(sys.argv[2])))
"""

MEMMAP = """
def blocks(path, tokens):
    data = np.memmap(path, "u2", "r")
    for start in range(0, len(data) - tokens, tokens):
        yield data[start : start + tokens].astype("i8")

report(blocks(sys.argv[1], int(sys.argv[2])))
"""


def measure(folder: Path) -> list[Row]:
    path = token_file(folder)
    contestants = {"TokenLoader": OURS, "np.memmap, astype(int64)": MEMMAP}
    ours = next(iter(contestants))
    kinds = {
        "seconds": Row("time of the pass", ours),
        "growth_mib": Row("growth of RssAnon", ours, unit="MiB", goals={ours: MOST_GROWTH_MIB}),
        "read_per_byte_used": Row(
            "read per byte used", ours, unit="bytes", goals={ours: MOST_READ_PER_BYTE_USED}
        ),
    }
    for _ in range(ROUNDS):
        sums = set()
        for name, code in contestants.items():
            evict(path)
            command = [sys.executable, "-c", COMMON + code, str(path), str(BLOCK_TOKENS)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout)
            sums.add((found["tokens"], found["total"]))
            for kind, row in kinds.items():
                row.figures.setdefault(name, []).append(found[kind])
        if len(sums) != 1:
            message = f"tokens and their sums differ: {sums}"
            raise AssertionError(message)
    return list(kinds.values())
