"""Runs comparisons and prints them. With --record, also writes them to benches/record/.

run.py loads --only "1 GiB, 10 ms per request" --record
"""

import argparse
import shutil
import tempfile
import time
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ablation
import batches
import checkpoints
import criterion
import experts
import few
import imports
import latency
import loads
import local_loads
import models
import mounts
import nfs
import opens
import parallel_slices
import passes
import pressure
import processes
import rank_plans
import ranks
import reads
import records
import reopens
import slices
import staging
import starts
import token_ranks
import verify
import weights_ablation
import windows
from harness import ROOT, Row, machine, table

from pagestream import _native

MODULES = {
    "batches": batches,
    "windows": windows,
    "latency": latency,
    "passes": passes,
    "pressure": pressure,
    "mounts": mounts,
    "loads": loads,
    "local_loads": local_loads,
    "models": models,
    "parallel_slices": parallel_slices,
    "experts": experts,
    "few": few,
    "processes": processes,
    "ranks": ranks,
    "rank_plans": rank_plans,
    "token_ranks": token_ranks,
    "nfs": nfs,
    "starts": starts,
    "imports": imports,
    "opens": opens,
    "reopens": reopens,
    "checkpoints": checkpoints,
    "reads": reads,
    "slices": slices,
    "staging": staging,
    "verify": verify,
    "ablation": ablation,
    "weights_ablation": weights_ablation,
}
ROOM_BYTES = 16 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*MODULES, []], help="which comparisons; all by default")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="of those, only cases that have this in their name"
    )
    parser.add_argument("--record", action="store_true", help="keep the results in benches/record/")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "target", help="for files of 10 GiB, on the disk to be measured"
    )
    options = parser.parse_args()
    if _native.debug_build:
        parser.error("the extension is a debug build; make one for release (make build)")
    names = options.names or list(MODULES)
    measures = selected(names, options.only)
    if not measures:
        there = [case for name in names for case in getattr(MODULES[name], "CASES", ())]
        among = "; ".join(there) or "none, for no case here has a name"
        parser.error(f"--only {options.only!r} picks none of the cases: {among}")
    options.folder.mkdir(exist_ok=True)
    if shutil.disk_usage(options.folder).free < ROOM_BYTES:
        parser.error(f"{options.folder} has less than {ROOM_BYTES >> 30} GiB of room; see --folder")
    profile = tomllib.loads((ROOT / "Cargo.toml").read_text())["profile"]["release"]
    facts = {**machine(), "profile": profile}
    # These come first, because only fresh results are used.
    results: dict[str, list[Row]] = {} if options.names or options.only else criterion.results()
    for result in results.items():
        print(table(*result), flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name, measure in measures.items():
            title, begin = MODULES[name].TITLE, time.monotonic()
            results[title] = measure(Path(folder))
            print(table(title, results[title]))
            print(f"({name}: {time.monotonic() - begin:.0f} s)\n", flush=True)
    if options.record:
        print(f"recorded as {records.record(facts, results)} in benches/record/")


def selected(names: list[str], text: str) -> dict[str, Callable[[Path], list[Row]]]:
    """Returns the function that measures each comparison, limited to cases with `text` in their names."""
    measures: dict[str, Callable[[Path], list[Row]]] = {}
    for name in names:
        module = MODULES[name]
        if not hasattr(module, "CASES"):
            if not text:
                measures[name] = module.measure
        elif cases := [case for case in module.CASES if text in case]:
            measures[name] = partial(module.measure, cases=cases)
    return measures


if __name__ == "__main__":
    main()
