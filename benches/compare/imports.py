"""Imports in new processes, with warm files, as `python -X importtime` tells them."""

import subprocess
import sys

from harness import Row

TITLE = "imports, page cache warm"
ROUNDS = 15
# `import pagestream` may take 1.3 times as long as NumPy's own.
LEAST_RATIO = 0.77


def measure(_folder: object) -> list[Row]:
    return [
        row("import pagestream", "import pagestream", {"numpy": "import numpy"}, {"numpy": LEAST_RATIO}),
        row("every name of it", "from pagestream import *", {"numpy": "import numpy"}, {}),
        row(
            "the names of safetensors, for NumPy",
            "import pagestream.safetensors.numpy",
            {"safetensors": "import safetensors.numpy"},
            {},
        ),
    ]


def row(case: str, ours: str, rivals: dict[str, str], goals: dict[str, float]) -> Row:
    """One round of each in turn, after one that warms the files."""
    statements = {"pagestream": ours, **rivals}
    result = Row(case, "pagestream", {name: [] for name in statements}, goals=goals)
    for number in range(ROUNDS + 1):
        for name, statement in statements.items():
            taken = seconds(statement)
            if number:
                result.figures[name].append(taken)
    return result


def seconds(statement: str) -> float:
    """The sum of what each module takes for itself, without those that Python imports to start."""
    start = modules("pass")
    return sum(taken for name, taken in modules(statement).items() if name not in start) / 1e6


def modules(statement: str) -> dict[str, int]:
    """What each module took for itself, in microseconds."""
    command = [sys.executable, "-X", "importtime", "-c", statement]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    lines = (line.removeprefix("import time:").split("|") for line in told.splitlines())
    return {line[2].strip(): int(line[0]) for line in lines if line[0].strip().isdigit()}
