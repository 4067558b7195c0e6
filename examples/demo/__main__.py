"""The main job, from start to end, on real input: `python examples/demo --output demo-output`.

The demo turns the source text of Python's standard library into token files and trains a small GPT on them.
It saves the weights, reopens them without a copy and checks them. It then compares reading both kinds of
files with the usual alternatives. A second run reuses the token files and the weights.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="where all files go")
    parser.add_argument("--fresh", action="store_true", help="use nothing of an earlier run")
    parser.add_argument("--steps", type=_positive, help="training steps (default: enough for a clear fall)")
    parser.add_argument("--max-files", type=_positive, help="source files to read (default: all)")
    parser.add_argument("--rounds", type=_positive, default=9, help="rounds of the side-by-side timings (9)")
    parser.add_argument(
        "--cold-mib",
        type=_positive,
        default=1024,
        metavar="MIB",
        help="size of the file that is read cold; removed at the end (1024)",
    )
    parser.add_argument(
        "--min-loss-drop",
        type=float,
        default=3.0,
        metavar="NATS",
        help="fail if the validation loss fell by less than this, in nats per token (3.0)",
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        message = f"must be at least 1, not {number}"
        raise argparse.ArgumentTypeError(message)
    return number


def set_up(output: Path) -> None:
    """Makes libraries write their caches to the output directory alone. Call this before importing them."""
    output.mkdir(parents=True, exist_ok=True)
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["MPLCONFIGDIR"] = str(output / ".matplotlib")
    os.environ["CUDA_CACHE_PATH"] = str(output / ".cuda")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(output / ".torch")
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    # torch's threads spin while they wait for each other. If other processes need the processors too, that
    # makes a step ten times slower. A short spin costs little on an idle machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def main() -> int:
    """Runs the demo.

    Returns:
        The exit code: 0, or 1 if one of the demo's checks failed.
    """
    options = parse()
    options.output = options.output.resolve()
    set_up(options.output)
    import story
    from files import DemoError

    try:
        story.tell(options)
    except DemoError as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
