"""Imports in new processes, with cached files, as reported by `python -X importtime`."""

import subprocess
import sys

from harness import Row

TITLE = "imports, page cache warm"
ROUNDS = 15
# `import pagestream` may take 1.3 times as long as NumPy's import.
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
    """Runs one round of each import in turn, after a round that caches the files."""
    statements = {"pagestream": ours, **rivals}
    result = Row(case, "pagestream", {name: [] for name in statements}, goals=goals)
    for number in range(ROUNDS + 1):
        for name, statement in statements.items():
            taken = seconds(statement)
            if number:
                result.figures[name].append(taken)
    return result


def seconds(statement: str) -> float:
    """Returns the sum of the modules' own times, without the modules that Python imports at startup."""
    start = modules("pass")
    return sum(taken for name, taken in modules(statement).items() if name not in start) / 1e6


def modules(statement: str) -> dict[str, int]:
    """Returns each module's own time in microseconds."""
    command = [sys.executable, "-X", "importtime", "-c", statement]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    lines = (line.removeprefix("import time:").split("|") for line in told.splitlines())
    return {line[2].strip(): int(line[0]) for line in lines if line[0].strip().isdigit()}
