"""Photographs pages of the documentation in a browser, in the widths of a desktop and of a telephone.

    make docs && python docs/figures/pages.py    # needs chromium

When the theme, the style or a figure changes, examine the pictures and commit them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SITE = HERE.parents[1] / "target/site"

PAGES = ("index", "start", "benchmarks", "reference/tokens")
WIDTHS = {"wide": 1280, "narrow": 500}  # chromium's windows are at least 500 wide
HEIGHT = 1400


def main() -> None:
    """Takes all pictures."""
    browser = shutil.which("chromium") or sys.exit("there is no chromium")
    for page in PAGES:
        found = SITE / ("" if page == "index" else page) / "index.html"
        for name, width in WIDTHS.items():
            picture = HERE / f"page-{page.replace('/', '-')}-{name}.png"
            options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            options += [f"--window-size={width},{HEIGHT}", f"--screenshot={picture}"]
            subprocess.run([browser, *options, found.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
