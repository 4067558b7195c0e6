"""A checkpoint from a distant NFS server, cold, in a guest that is both client and server."""

import json
import sys
import tempfile
from pathlib import Path

from cold import ROOT
from harness import Row

sys.path.append(str(ROOT / "tests/python"))  # the tests boot the same guest
from support.nfs_guest import run_in_guest

TITLE = "a checkpoint of 64 MiB from NFS, by what a round trip takes, cold, to CPU memory"
SECONDS = 480
GOAL = 3.0


def measure(folder: Path) -> list[Row]:
    """Measures ratios only: both sides of the mount and the program share one emulated processor."""
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        console = run_in_guest(Path(__file__).with_name("nfs_weights.py"), Path(inner), SECONDS)
        path = Path(inner) / "results"
        lines = path.read_text().splitlines() if path.exists() else []
        if not lines:
            message = f"the guest measured nothing; its console:\n{console[-3000:]}"
            raise RuntimeError(message)
        found = [json.loads(line) for line in lines]
    rows = []
    for case in dict.fromkeys(each["case"] for each in found):
        loads = [each for each in found if each["case"] == case]
        ways = list(dict.fromkeys(each["way"] for each in loads))
        seconds = {way: [each["seconds"] for each in loads if each["way"] == way] for way in ways}
        remarks = {
            way: f"{max(each['in_flight'] for each in loads if each['way'] == way):.1f} requests in flight"
            for way in ways
        }
        rivals = [way for way in ways if way.startswith("safetensors")]
        for ours in (way for way in ways if way not in rivals):
            # An unmodified program is compared with itself.
            same = [way for way in rivals if ours.startswith("stream") or way[-2:] == ours[-2:]]
            figures = {way: seconds[way] for way in (ours, *same)}
            told = {way: remarks[way] for way in figures}
            goals = {} if case.startswith("0 ms") else dict.fromkeys(same, GOAL)
            rows.append(Row(case, ours, figures, goals=goals, remarks=told))
    return rows
