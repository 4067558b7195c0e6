"""Writes `benches/record/summary.md`, the table at the top of the benchmarks, from their records.

    python docs/figures/summary.py

Each line compares one of our ways with the fastest rival in the same row of a record.
"""

from __future__ import annotations

from dataclasses import dataclass

from records import RECORDS, recorded

# The names of pagestream's own ways, and of yardsticks, which are not loaders.
OURS = (
    "stream",
    "safe_open, installed",
    "load_file, installed",
    "installed",
    "get_slice, installed",
    "TokenLoader",
    "whole: stream",
    "pagestream",
)
# The names in the documentation.
LABELS = {
    "safe_open, installed": "`safe_open` after `install()`",
    "installed": "`safe_open` after `install()`",
    "stream": "`stream`",
    "stream(plan)": "`stream(plan)`",
    "whole: stream, process_group": "`stream_checkpoint(process_group=)`",
    "TokenLoader": "`TokenLoader`",
    "whole: safetensors, each for itself": "safetensors, each for itself",
    "LitData (windows of one chunk, shuffled)": "LitData, windows of one chunk",
}
YARDSTICKS = ("the disk alone", "O_DIRECT", "2 threads", "1 node")


@dataclass
class Line:
    """A line of the table.

    Attributes:
        title: The kind of measurement.
        record: The name of the recorded run.
        case: The case of one of its comparisons.
        ours: The pagestream contestant.
        is_rate: Whether the value is a rate, where more is better, and not a time.
        link: The section of the page with the recorded table.
    """

    title: str
    record: str
    case: str
    ours: str
    link: str
    is_rate: bool = False

    def figures(self) -> dict[str, float]:
        """Returns the median of each contestant."""
        return {line["contestant"]: float(line["median"]) for line in recorded(self.record, self.case)}

    def rival(self) -> str:
        """Returns the name of the fastest contestant that is neither ours nor a yardstick."""
        figures = self.figures()
        others = [name for name in figures if not name.startswith((*OURS, *YARDSTICKS))]
        return (max if self.is_rate else min)(others, key=figures.__getitem__)

    def text(self) -> str:
        """Returns the line in Markdown."""
        figures, rival = self.figures(), self.rival()
        ours, theirs = figures[self.ours], figures[rival]
        ratio = ours / theirs if self.is_rate else theirs / ours
        mark = "**" if ratio < 1 else ""
        cells = [
            f"[{self.title}](#{self.link})",
            f"{self.shown(ours)} ({LABELS[self.ours]})",
            f"{self.shown(theirs)} ({LABELS.get(rival, rival)})",
            f"{mark}{ratio:.3g}{mark}",
        ]
        return f"| {' | '.join(cells)} |"

    def shown(self, value: float) -> str:
        """Returns a value with its unit."""
        if self.is_rate:
            return f"{value / 1000:.3g} thousand/s"
        milliseconds = 1000 * value
        return f"{value:.3g} s" if milliseconds > 10 else f"{milliseconds:.3g} ms"  # noqa: PLR2004


LINES = [
    Line(
        "1 GiB from a mount, 10 ms per request",
        "2026-11-26-640d8d5",
        "1 GiB, 10 ms per request, cached",
        "safe_open, installed",
        "weights-from-a-slow-mount",
    ),
    Line(
        "the same with `direct_io`",
        "2026-11-26-7019965",
        "1 GiB, 10 ms per request, direct_io",
        "safe_open, installed",
        "weights-from-a-slow-mount",
    ),
    Line(
        "1 GiB from a mount, 2 ms per request",
        "2026-11-26-7bc0bd6-2",
        "1 GiB, 2 ms per request, cached",
        "safe_open, installed",
        "weights-from-a-slow-mount",
    ),
    Line(
        "8 processes load 1 GiB, 10 ms per request",
        "2026-11-24-53bcdd0",
        "8 processes, cached",
        "stream",
        "weights-from-a-slow-mount",
    ),
    Line(
        "1 GiB from the local disk, cold",
        "2026-11-26-7bc0bd6",
        "1 GiB in 4 shards, cold, read-ahead 8192 KiB",
        "safe_open, installed",
        "weights-from-the-local-disk",
    ),
    Line(
        "1/8 of the rows of each matrix, 10 ms",
        "2026-11-24-9b2ced0",
        "rows of 4,096 x 4,096, cached",
        "stream(plan)",
        "parts-of-tensors",
    ),
    Line(
        "the first 8 of 64 layers, `direct_io`, 100 MB/s",
        "2026-11-26-0880b77",
        "the first 8 layers of 64, direct_io",
        "installed",
        "few-bytes-blocks-and-small-files",
    ),
    Line(
        "8 nodes load 512 MiB from one store",
        "2026-11-27-b5e8020",
        "8 nodes on one store",
        "whole: stream, process_group",
        "ranks-of-a-job",
    ),
    Line(
        "random windows of 2 KiB, cold file of 10 GiB",
        "2026-11-22-00e9c16",
        "2050 bytes, read-ahead 128 KiB",
        "TokenLoader",
        "windows-of-cold-token-files",
        is_rate=True,
    ),
    Line(
        "a batch of 64 x 1024 tokens, in the page cache",
        "2026-11-21-94e7572",
        "64 x 1024",
        "TokenLoader",
        "batches-from-the-page-cache",
    ),
]


def summary() -> str:
    """Returns the table."""
    head = "| what | pagestream | best other | ratio |\n|---|---|---|---|\n"
    return head + "\n".join(line.text() for line in LINES) + "\n"


if __name__ == "__main__":
    (RECORDS / "summary.md").write_text(summary())
