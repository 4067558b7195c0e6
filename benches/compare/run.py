"""Runs all comparisons and prints them; with --record keeps them in benches/record/."""

import argparse
import shutil
import tempfile
import time
import tomllib
from pathlib import Path

import ablation
import batches
import checkpoints
import criterion
import latency
import loads
import mounts
import nfs
import opens
import passes
import reads
import reopens
import slices
import staging
import starts
import verify
import windows
from harness import ROOT, Row, as_json, machine, table

from pagestream import _native

MODULES = {
    "batches": batches,
    "windows": windows,
    "latency": latency,
    "passes": passes,
    "mounts": mounts,
    "loads": loads,
    "nfs": nfs,
    "starts": starts,
    "opens": opens,
    "reopens": reopens,
    "checkpoints": checkpoints,
    "reads": reads,
    "slices": slices,
    "staging": staging,
    "verify": verify,
    "ablation": ablation,
}
ROOM_BYTES = 16 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*MODULES, []], help="which comparisons; all by default")
    parser.add_argument("--record", action="store_true", help="keep the results in benches/record/")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "target", help="for files of 10 GiB, on the disk to be measured"
    )
    options = parser.parse_args()
    if _native.debug_build:
        parser.error("the extension is a debug build; make one for release (make build)")
    options.folder.mkdir(exist_ok=True)
    if shutil.disk_usage(options.folder).free < ROOM_BYTES:
        parser.error(f"{options.folder} has less than {ROOM_BYTES >> 30} GiB of room; see --folder")
    profile = tomllib.loads((ROOT / "Cargo.toml").read_text())["profile"]["release"]
    facts = {**machine(), "profile": profile}
    # First, for they are only looked for while they are fresh.
    results: dict[str, list[Row]] = {} if options.only else criterion.results()
    for result in results.items():
        print(table(*result), flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.only or MODULES:
            module, begin = MODULES[name], time.monotonic()
            results[module.TITLE] = module.measure(Path(folder))
            print(table(module.TITLE, results[module.TITLE]))
            print(f"({name}: {time.monotonic() - begin:.0f} s)\n", flush=True)
    if options.record:
        head = f"# {facts['date']}\n\n" + "".join(f"- {key}: {value}\n" for key, value in facts.items())
        text = "\n".join([head, *(table(*result) for result in results.items())])
        (ROOT / "benches/record").mkdir(exist_ok=True)
        stem = ROOT / "benches/record" / f"{facts['date']}-{facts['commit']}"
        stem.with_suffix(".md").write_text(text)
        stem.with_suffix(".json").write_text(as_json(facts, results))
        print(f"recorded in {stem}.md and .json")


if __name__ == "__main__":
    main()
