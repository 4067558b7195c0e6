"""Draws the figures of the documentation from the records of the benchmarks.

    python docs/figures/draw.py [FOLDER]

Each bar is the median of a row of `benches/record/`, and its line spans the quartiles. `requests.py` measured
the curves of `requests.json`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from records import recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

HERE = Path(__file__).parent
OURS, THEIRS = "#1f77b4", "#9aa0a6"
# Each figure is drawn once per palette. The key is the end of its file name.
PALETTES = {"": {"ink": "#000000", "paper": "#ffffff"}, "-dark": {"ink": "#e2e4e9", "paper": "none"}}

LOADS = "whole checkpoints of 4 shards from a FUSE mount, cold, to CPU memory"
WINDOWS = "random windows of a cold file of 10 GiB"
BATCHES = "token batches, page cache warm"
PROCESSES = "a checkpoint of 1 GiB in 4 shards, loaded by processes that begin at the same time"


@dataclass
class Bars:
    """Bars of one row of a record.

    Attributes:
        title: The title of the figure.
        record: The name of the recorded run.
        table: The comparison of the run.
        case: The case of the comparison.
        ours: The contestants that are pagestream's, by their labels.
        theirs: The other contestants.
        unit: ``"s"``, ``"ms"`` or the record's own.
    """

    title: str
    record: str
    table: str
    case: str
    ours: dict[str, str]
    theirs: dict[str, str] = field(default_factory=dict)
    unit: str = "s"

    def values(self) -> dict[str, tuple[float, float, float]]:
        """Returns the first quartile, the median and the third quartile of each contestant, by its label."""
        spans = {
            line["contestant"]: (float(line["low"]), float(line["median"]), float(line["high"]))
            for line in recorded(self.record, self.case)
            if line["comparison"] == self.table
        }
        labels = self.ours | self.theirs
        return {label: spans[name] for label, name in labels.items()}


SLOW_MOUNT = {
    "pagestream: stream": "stream",
    "pagestream: safe_open after install()": "safe_open, installed",
    "pagestream: load_file after install()": "load_file, installed",
}
SLOW_RIVALS = {
    "runai-model-streamer (buffered)": "runai-model-streamer, io_uring_buffered",
    "fastsafetensors": "fastsafetensors",
    "safetensors: safe_open": "safetensors, mmap",
    "safetensors: load_file": "safetensors, load_file",
    "torch.load(mmap=True)": "torch.load(mmap=True)",
    "cattensors": "cattensors",
}
WINDOW_RIVALS = {
    "LitData (within chunks)": "LitData (windows of one chunk, shuffled)",
    "np.memmap, MADV_RANDOM": "np.memmap, MADV_RANDOM",
    "Grain over np.memmap": "Grain, 16 threads over np.memmap",
    "np.memmap, new for each batch": "np.memmap, new for each batch",
}

FIGURES = {
    "loads": [
        Bars(
            "Seconds to load 1 GiB of weights from a cold FUSE mount, 10 ms per request",
            "2026-11-26-640d8d5",
            LOADS,
            "1 GiB, 10 ms per request, cached",
            SLOW_MOUNT,
            SLOW_RIVALS,
        )
    ],
    "front": [
        Bars(
            "Load 1 GiB of weights from a cold mount with 10 ms per request (seconds; less is better)",
            "2026-11-26-640d8d5",
            LOADS,
            "1 GiB, 10 ms per request, cached",
            {"pagestream.safetensors.install()": "safe_open, installed"},
            {
                "runai-model-streamer (buffered)": "runai-model-streamer, io_uring_buffered",
                "fastsafetensors": "fastsafetensors",
                "safetensors": "safetensors, mmap",
            },
        ),
        Bars(
            "Random windows of 2 KiB from a cold file of 10 GiB (thousands per second; more is better)",
            "2026-11-22-00e9c16",
            WINDOWS,
            "2050 bytes, read-ahead 128 KiB",
            {"pagestream TokenLoader": "TokenLoader"},
            WINDOW_RIVALS,
            "thousands",
        ),
    ],
    "processes": [
        Bars(
            f"Seconds until {count} load 1 GiB from a cold FUSE mount, 10 ms per request",
            "2026-11-24-53bcdd0",
            PROCESSES,
            f"{count}, cached",
            {
                "pagestream: safe_open after install()": "safe_open, installed",
                "pagestream: stream": "stream",
            },
            {"safetensors": "safetensors, mmap", "cattensors": "cattensors"},
        )
        for count in ("1 process", "4 processes", "8 processes")
    ],
    "windows": [
        Bars(
            f"Windows of {size} from a cold file of 10 GiB, read-ahead 128 KiB (thousands per second)",
            "2026-11-22-00e9c16",
            WINDOWS,
            f"{size.split()[0]} bytes, read-ahead 128 KiB",
            {"TokenLoader": "TokenLoader", 'TokenLoader, order="blocked"': 'TokenLoader, order="blocked"'},
            WINDOW_RIVALS | {"O_DIRECT, 64 reads at a time": "O_DIRECT, depth 64"},
            "thousands",
        )
        for size in ("2050 bytes", "8194 bytes")
    ],
    "batches": [
        Bars(
            f"Milliseconds for a batch of {shape} tokens as int64 from the page cache",
            "2026-11-21-94e7572",
            BATCHES,
            shape,
            {"TokenLoader": "TokenLoader"},
            {
                "strided NumPy gather": "strided NumPy gather",
                "DataLoader, __getitems__, in the process": "DataLoader, __getitems__, 0 workers",
                "DataLoader, a window a call": "DataLoader, a window a call, 0 workers",
                "nanoGPT get_batch": "nanoGPT get_batch",
                "DataLoader, a window a call, 2 workers": "DataLoader, a window a call, 2 workers",
            },
            "ms",
        )
        for shape in ("64 x 1024", "32 x 4096")
    ],
}
FACTORS = {"s": 1.0, "ms": 1000.0, "thousands": 0.001}


def write_title(axes: Axes, title: str) -> None:
    """Writes a title that begins at the left edge of the figure. Beside the labels, it would be cut off."""
    axes.set_title(" ", fontsize=10)  # reserves space in the layout
    axes.annotate(
        title,
        (0.005, 1),
        xytext=(0, 6),
        xycoords=("figure fraction", "axes fraction"),
        textcoords="offset points",
        fontsize=10,
        fontweight="bold",
        annotation_clip=False,
    ).set_in_layout(False)


@contextlib.contextmanager
def new_figure(name: str, palette: str, height: float) -> Iterator[Figure]:
    """Sets colours, and yields an empty figure whose file is the same each time."""
    colours = PALETTES[palette]
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    options: dict[str, Any] = dict.fromkeys(inked, colours["ink"])
    options |= {"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 10, "axes.facecolor": "none"}
    with mpl.rc_context(options):
        yield Figure(figsize=(8, height), layout="constrained", facecolor=colours["paper"])


def save(figure: Figure, name: str, palette: str, folder: Path) -> Path:
    """Writes a figure as SVG, without the time, and returns its path."""
    path = folder / f"{name}{palette}.svg"
    figure.savefig(path, metadata={"Date": None})
    return path


def draw(name: str, folder: Path, palette: str = "") -> Path:
    """Draws bars as SVG, and returns the path."""
    parts = FIGURES[name]
    values = [part.values() for part in parts]
    lines = sum(map(len, values)) + 1.6 * len(parts)
    with new_figure(name, palette, 0.27 * lines) as figure:
        heights = [len(each) + 1 for each in values]
        all_axes: Any = figure.subplots(len(parts), squeeze=False, height_ratios=heights)
        for axes, part, of_part in zip(all_axes[:, 0], parts, values, strict=True):
            factor = FACTORS[part.unit]
            amounts = [median * factor for _, median, _ in of_part.values()]
            spans = [
                [(median - first) * factor for first, median, _ in of_part.values()],
                [(third - median) * factor for _, median, third in of_part.values()],
            ]
            colours = [OURS if label in part.ours else THEIRS for label in of_part]
            ink = mpl.rcParams["text.color"]
            bars = axes.barh(
                list(of_part), amounts, xerr=spans, color=colours, ecolor=ink, error_kw={"lw": 1}, height=0.7
            )
            axes.bar_label(bars, [f"{amount:.3g}" for amount in amounts], padding=4)
            write_title(axes, part.title)
            axes.invert_yaxis()
            axes.margins(x=0.1)
            axes.xaxis.set_visible(False)
            axes.spines[["top", "right", "bottom"]].set_visible(False)
            axes.tick_params(left=False)
        return save(figure, name, palette, folder)


def draw_requests(folder: Path, palette: str = "") -> Path:
    """Draws the bytes that a slow mount delivered over time, and returns the path.

    A dot marks the end of the program, which uses each tensor after its bytes have arrived.
    """
    found = json.loads((HERE / "requests.json").read_text())
    with new_figure("requests", palette, 3.2) as figure:
        axes = figure.subplots()
        for way, label, colour in (("install", "after install()", OURS), ("stock", "safetensors", THEIRS)):
            seconds, mib = zip(*found[way], strict=True)
            axes.plot(seconds, mib, color=colour, linewidth=2)
            axes.plot(seconds[-1], mib[-1], "o", color=colour)
            delivered = seconds[mib.index(max(mib))]
            axes.annotate(
                f"{label}: all bytes after {delivered:.2g} s,\nprogram done after {seconds[-1]:.2g} s",
                (seconds[-1], mib[-1]),
                (-4, -30),
                textcoords="offset points",
                horizontalalignment="right",
            )
        write_title(
            axes,
            f"MiB that a mount with {found['delay_ms']} ms per request of "
            f"{found['request_bytes'] >> 10} KiB has delivered",
        )
        axes.set_xlabel("seconds since the file was opened")
        axes.set_xlim(0, found["stock"][-1][0] * 1.05)
        axes.set_ylim(0)
        axes.spines[["top", "right"]].set_visible(False)
        return save(figure, "requests", palette, folder)


def main() -> None:
    """Draws all figures into a folder."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for palette in PALETTES:
        for name in FIGURES:
            print(draw(name, folder, palette))
        print(draw_requests(folder, palette))


if __name__ == "__main__":
    main()
