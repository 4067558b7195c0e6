"""The record of all runs, `benches/record/records.csv`: one line for each contestant of a case.

`benches/record/` also holds the Markdown tables that the documentation shows.
"""

import csv
from collections.abc import Iterator

from harness import ROOT, Row, table

FOLDER = ROOT / "benches/record"
CSV = FOLDER / "records.csv"
# `low` and `high` are the quartiles, or the extremes of fewer than four rounds. `run` also names the table of
# the run.
FIELDS = (
    "run",
    "date",
    "commit",
    "machine",
    "comparison",
    "case",
    "contestant",
    "unit",
    "median",
    "low",
    "high",
    "rounds",
)


def record(facts: dict[str, object], results: dict[str, list[Row]]) -> str:
    """Appends a run to the record, writes its tables, and returns the name of the run."""
    FOLDER.mkdir(exist_ok=True)
    with CSV.open(newline="") as file:
        runs = {line["run"] for line in csv.DictReader(file)}
    run = free_name(f"{facts['date']}-{facts['commit']}", runs)
    head = f"# {facts['date']}\n\n" + "".join(f"- {key}: {value}\n" for key, value in facts.items())
    tables = [table(*result) for result in results.items()]
    (FOLDER / f"{run}.md").write_text("\n".join([head, *tables]))
    with CSV.open("a", newline="") as file:
        csv.DictWriter(file, FIELDS, lineterminator="\n").writerows(lines(run, facts, results))
    return run


def lines(run: str, facts: dict[str, object], results: dict[str, list[Row]]) -> Iterator[dict[str, object]]:
    """Returns the lines of a run."""
    machine = f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['kernel']}"
    common = {"run": run, "date": facts["date"], "commit": facts["commit"], "machine": machine}
    for title, rows in results.items():
        for row in rows:
            for name, figures in row.figures.items():
                median, (low, high) = row.median(name), row.span(name)
                numbers = {"median": f"{median:.6g}", "low": f"{low:.6g}", "high": f"{high:.6g}"}
                yield {
                    **common,
                    "comparison": title,
                    "case": row.case,
                    "contestant": name,
                    "unit": row.unit,
                    **numbers,
                    "rounds": len(figures),
                }


def free_name(name: str, taken: set[str]) -> str:
    """Returns the name, with a number if an earlier run of the same commit has it."""
    number = 1
    found = name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found
