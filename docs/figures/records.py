"""Reads the record of the benchmarks."""

import csv
from pathlib import Path

RECORDS = Path(__file__).parents[2] / "benches/record"


def recorded(run: str, case: str) -> list[dict[str, str]]:
    """Returns the lines of a case in a recorded run, one for each contestant."""
    with (RECORDS / "records.csv").open(newline="") as file:
        return [line for line in csv.DictReader(file) if (line["run"], line["case"]) == (run, case)]
