"""``pagestream evict``: drops files from the page cache."""

from __future__ import annotations

from typing import Any

from pagestream.cli import _console, _output
from pagestream.cli._arguments import AsJson, Paths
from pagestream.cli._target import files_of
from pagestream.files.mapped_file import MappedFile


def evict(
    paths: Paths,
    as_json: AsJson = False,
) -> None:
    """Drop files from the page cache, to measure cold reads or to make room. Pages that a program maps stay.

    Example: pagestream evict train.bin
    """
    rows: list[dict[str, Any]] = []
    files, problems = files_of(paths)
    for path in files:
        with MappedFile(path) as file:
            before = file.residency().fraction
            file.evict()
            rows.append({"path": path, "before": before, "after": file.residency().fraction})
    if as_json:
        _output.print_json(rows)
    else:
        made = _console.table("file", "cached before", "after", right=("cached before", "after"))
        for row in rows:
            made.add_row(
                _output.short(row["path"]), _output.percent(row["before"]), _output.percent(row["after"])
            )
        _console.console().print(made)
    _output.end_if_any(problems)
