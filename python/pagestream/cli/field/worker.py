"""A load with one loader, in a separate process: ``python -m pagestream.cli.field.worker``.

The first argument is JSON: ``kind``, ``loader``, ``path``, ``seed``, ``most_steps``, ``most_seconds``,
``waits``. The process prints ``ready`` once everything is imported, begins when it receives a line, and
prints the result as JSON. With ``waits`` it prints ``first`` after the first step, and waits for another
line.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
import time
from typing import Any

import numpy as np

from pagestream.cli import _contests
from pagestream.cli.field import loaders

# Seconds between two measurements of the memory.
_LOOK = 0.02


class _Memory(threading.Thread):
    """Watches the anonymous memory of this process and its children."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.most = _anonymous_bytes()
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_LOOK):
            self.most = max(self.most, _anonymous_bytes())

    def growth(self) -> int:
        """Ends the watch. Returns the maximum growth of the memory."""
        self._ended.set()
        self.join()
        return max(self.most, _anonymous_bytes()) - self.before


def _anonymous_bytes() -> int:
    total = 0
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        processes = ["self", *file.read().split()]
    for process in processes:
        with contextlib.suppress(OSError), open(f"/proc/{process}/status", encoding="utf-8") as file:
            total += next((int(line.split()[1]) for line in file if line.startswith("RssAnon")), 0)
    return total << 10


def _read_bytes() -> int:
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))


def _cpu_seconds() -> float:
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _used(tensor: Any) -> int:  # noqa: ANN401 - an array or a tensor
    """Reads all bytes of a tensor, as a copy to a device would."""
    return int(np.ascontiguousarray(np.asarray(tensor)).reshape(-1).view(np.uint64).sum(dtype=np.uint64))


def main() -> None:
    """Runs the load, and prints the result."""
    asked = json.loads(sys.argv[1])
    loader = loaders.KINDS[asked["kind"]][asked["loader"]]
    # Import the libraries first: their import time is not compared.
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(Exception):
        next(loader.steps(asked["path"] + ".nothing", 0))
    print("ready", flush=True)
    sys.stdin.readline()

    found: dict[str, Any] = {"sums": {}, "steps": 0, "nbytes": 0, "error": None, "is_right": True}
    found["is_late"] = False
    memory, latencies = _Memory(), []
    memory.start()
    read, cpu, begun = _read_bytes(), _cpu_seconds(), time.perf_counter()
    try:
        last = begun
        for name, thing in loader.steps(asked["path"], asked["seed"]):
            if asked["kind"] == "tokens":
                latencies.append(time.perf_counter() - last)
                # Verifying every tenth batch takes additional time.
                if found["steps"] % 10 == 0:
                    _contests.prove(*thing)
                found["nbytes"] += _contests.BATCH_SIZE * _contests.SEQUENCE_LENGTH * 2
            else:
                found["sums"][name] = _used(thing)
                found["nbytes"] += thing.nbytes
                latencies.append(time.perf_counter() - last)
            found["steps"] += 1
            if found["steps"] == 1 and asked["waits"]:
                print("first", flush=True)
                sys.stdin.readline()
            last = time.perf_counter()
            found["is_late"] = last - begun > asked["most_seconds"]
            if found["is_late"] or found["steps"] >= asked["most_steps"]:
                break
    except _contests.WrongBytesError:
        found["is_right"] = False
    except Exception as error:  # noqa: BLE001 - the result reports any error of a loader
        found["error"] = f"{type(error).__name__}: {error}"
    found["seconds"] = time.perf_counter() - begun
    found["anonymous_bytes"] = memory.growth()
    found["cpu_seconds"] = _cpu_seconds() - cpu
    found["read_bytes"] = _read_bytes() - read
    found["latencies"] = [float(each) for each in np.quantile(latencies or [0.0], [0.5, 0.99])]
    print(json.dumps(found), flush=True)
    # Do not wait for threads and processes that loaders leave behind.
    os._exit(0)


if __name__ == "__main__":
    main()
