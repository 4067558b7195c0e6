"""A picture of the pages of a file that are in the page cache.

python residency_picture.py model.safetensors residency.png
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from matplotlib.figure import Figure

from pagestream import MappedFile

COLUMNS = 256


def main() -> None:
    """Draws one square for each page, row after row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="any file")
    parser.add_argument("picture", help="the picture to draw, such as residency.png")
    arguments = parser.parse_args()
    path = arguments.file
    try:
        with MappedFile(path) as file:
            residency = file.residency()
    except OSError as error:
        parser.error(str(error))
    if residency.pages is None:
        sys.exit(f"which pages of {path} are in the page cache cannot be told: {residency.method}")
    pages = np.zeros(-(-len(residency.pages) // COLUMNS) * COLUMNS)
    pages[: len(residency.pages)] = np.where(residency.pages, 1.0, 0.4)
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.imshow(pages.reshape(-1, COLUMNS), cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="none")
    axes.set_title(f"{residency.fraction:.0%} of {path} is in the page cache ({residency.method})")
    axes.set_ylabel(f"rows of {COLUMNS} pages")
    try:
        figure.savefig(arguments.picture)
    except (OSError, ValueError) as error:  # an unknown folder or format
        parser.error(str(error))
    print(f"{residency.fraction:.0%} of {len(residency.pages):,} pages are in the page cache")


if __name__ == "__main__":
    main()
