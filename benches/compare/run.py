"""Runs all comparisons and prints them; with --record keeps them in benches/record/."""

import argparse
import json
import os
import tempfile
import time
import tomllib
from pathlib import Path

import batches
import opens
import reads
import staging
from harness import ROOT, Row, as_json, machine, table

from pagestream import _native

MODULES = {"batches": batches, "opens": opens, "reads": reads, "staging": staging}


def rust_results() -> list[Row]:
    """What `cargo bench` left in the last hour: criterion's medians with their 95 % intervals."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    rows: dict[tuple[str, int], Row] = {}
    for file in sorted((target / "criterion").glob("copy_*/*/*/new/estimates.json")):
        if time.time() - file.stat().st_mtime > 3600:
            continue
        *_, group, name, size, _, _ = file.parts
        median = json.loads(file.read_text())["median"]
        interval = median["confidence_interval"]
        seconds = [interval["lower_bound"], median["point_estimate"], interval["upper_bound"]]
        case = f"{group.replace('copy_', 'copy, ')}, {int(size):,} bytes"
        row = rows.setdefault((group, int(size)), Row(case, "fallible"))
        row.seconds[name] = [value * 1e-9 for value in seconds]
    return [rows[key] for key in sorted(rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*MODULES, []], help="which comparisons; all by default")
    parser.add_argument("--record", action="store_true", help="keep the results in benches/record/")
    options = parser.parse_args()
    if _native.debug_build:
        parser.error("the extension is a debug build; make one for release (make build)")
    profile = tomllib.loads((ROOT / "Cargo.toml").read_text())["profile"]["release"]
    facts = {**machine(), "profile": profile}
    results: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or MODULES:
            module = MODULES[name]
            results[module.TITLE] = module.measure(Path(folder))
            print(table(module.TITLE, results[module.TITLE]), flush=True)
    rust = rust_results()
    if rust and not options.only:
        results["the fallible copy against memcpy (criterion, 95 % interval of the median)"] = rust
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
