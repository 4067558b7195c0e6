"""The time from the end of the imports to the first batch, in new processes: 10^10 tokens in 1,000 sparse
shards.

Megatron's GPTDataset has the same number of tokens in one sparse `.bin`, in documents of 1,000 tokens, and
builds its index for all samples of an epoch. The page cache is empty. All tokens are holes, except for the
first 4 KiB of each shard, where a loader detects the width of the tokens. The processes therefore wait only
for the `.idx`.
"""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from cold import evict
from harness import Row

TITLE = "start to the first batch, 10^10 tokens, sequence length 1024"
TOKENS = 10**10
SHARDS = 1000
DOCUMENT_TOKENS = 1000
ROUNDS = 3
MOST_SECONDS = 0.2

OURS = """
import sys, time
from pagestream import TokenLoader
begin = time.perf_counter()
loader = TokenLoader(sys.argv[1], sequence_length=1024, batch_size=64)
x, y = next(loader)
seconds = time.perf_counter() - begin
assert x.shape == y.shape == (64, 1024) and (x[:, 1:] == y[:, :-1]).all()
assert len(loader.tokens) == int(sys.argv[2])
loader.close()
print(seconds, len(loader) * 64)
"""

MEGATRON = """
import sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np
import megatron.core.datasets.helpers
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split

class Tokenizer:
    vocab_size, eod, pad, unique_identifiers = 50000, 0, 1, {}

config = GPTDatasetConfig(
    random_seed=1, sequence_length=1024, tokenizer=Tokenizer(), path_to_cache=sys.argv[3],
    reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False,
)
begin = time.perf_counter()
low = IndexedDataset(sys.argv[1], multimodal=False, mmap=True)
documents = np.arange(len(low), dtype=np.int32)
samples = (int(sys.argv[2]) - 1) // 1024
dataset = GPTDataset(low, sys.argv[1], documents, samples, Split.train, config)
batch = [dataset[number] for number in range(64)]
seconds = time.perf_counter() - begin
assert all(len(sample["tokens"]) == 1024 and not sample["tokens"].any() for sample in batch)
print(seconds, len(dataset))
"""


def shards(folder: Path) -> Path:
    """Makes raw uint16 files that begin with tokens of common and rare words. The rest is not written."""
    folder.mkdir()
    begin = np.random.default_rng(1).zipf(1.3, 2048).astype("u2").tobytes()
    for number in range(SHARDS):
        with (folder / f"shard-{number:04}.bin").open("wb") as file:
            file.write(begin)
            os.truncate(file.fileno(), TOKENS // SHARDS * 2)
    return folder


def megatron_files(stem: Path) -> Path:
    """Makes a sparse `.bin`, and the `.idx` with the positions of its documents."""
    stem.parent.mkdir()
    documents = TOKENS // DOCUMENT_TOKENS
    with stem.with_suffix(".bin").open("wb") as file:
        os.truncate(file.fileno(), TOKENS * 2)
    with stem.with_suffix(".idx").open("wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
        np.full(documents, DOCUMENT_TOKENS, "i4").tofile(file)
        (np.arange(documents, dtype="i8") * DOCUMENT_TOKENS * 2).tofile(file)
        np.arange(documents + 1, dtype="i8").tofile(file)
    return stem


def listing(folder: Path) -> set[tuple[str, int, int]]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def seconds_of(code: str, path: Path, cache: Path) -> tuple[float, int, int]:
    """Returns the seconds, samples and written bytes of a new process that starts in an empty folder."""
    cache.mkdir()
    for file in path.iterdir() if path.is_dir() else path.parent.iterdir():
        evict(file)
    before = listing(path.parent)
    command = [sys.executable, "-c", code, str(path), str(TOKENS), str(cache)]
    done = subprocess.run(command, cwd=cache, check=True, capture_output=True, text=True)
    written = (listing(path.parent) | listing(cache)) - before
    shutil.rmtree(cache)
    seconds, samples = done.stdout.split()
    return float(seconds), int(samples), sum(size for _, size, _ in written)


def measure(folder: Path) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        place = Path(inner)
        raw, megatron = shards(place / "shards"), megatron_files(place / "megatron" / "tokens")
        contestants = {
            "TokenLoader, 1,000 raw shards": (OURS, raw),
            "TokenLoader, Megatron's files": (OURS, megatron),
            "Megatron's GPTDataset": (MEGATRON, megatron),
        }
        figures: dict[str, list[float]] = {name: [] for name in contestants}
        remarks = {}
        for _ in range(ROUNDS):
            for name, (code, path) in contestants.items():
                seconds, samples, written = seconds_of(code, path, place / "cache")
                if code is OURS and written:
                    message = f"{name} wrote {written} bytes to files"
                    raise AssertionError(message)
                figures[name].append(seconds)
                remarks[name] = f"{samples:,} samples, {written / 1e6:,.0f} MB of files written"
    own, rival = list(contestants)[:2], list(contestants)[2]
    return [
        Row(
            "first batch of 64",
            name,
            {contestant: figures[contestant] for contestant in (name, rival)},
            goals={name: MOST_SECONDS},
            remarks=remarks,
        )
        for name in own
    ]
