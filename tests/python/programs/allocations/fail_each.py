"""Repeats a scenario and makes another large allocation fail each time.

    fail_each.py SCENARIO FOLDER SLOW

FOLDER has the files of `test_allocations.py`, and SLOW shows it through FUSE. Prints the number of each
allocation before it fails, so that the last line names it if the process dies. Finally prints the number of
failed allocations.
"""

import ctypes
import errno
import shutil
import sys
import tempfile
from pathlib import Path

import pagestream
from pagestream.safetensors import safe_open

scenario, folder, slow = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
library = ctypes.CDLL(None)
plain, many = folder / "plain.safetensors", folder / "many.safetensors"


def fresh(path):
    """Returns a copy of a folder, whose headers are not cached."""
    return shutil.copytree(path, Path(tempfile.mkdtemp(dir=folder)) / "copy")


def column_slices(path):
    with safe_open(path, "np") as file:
        for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
            file.get_slice(name)[:, 3:900]


def row_slices(path):
    with safe_open(path, "np") as file:
        part = file.get_slice(file.keys()[0])
        for row in range(0, part.get_shape()[0], 8):
            part[row : row + 8]


def lead(path, count=None):
    with safe_open(path, "np") as file:
        for name in file.keys()[:count]:
            file.get_tensor(name).sum()


def stream(path, **options):
    with pagestream.open_checkpoint([path]) as weights:
        for _, array in weights.stream(**options):
            array.sum()


def stream_of_columns(path):
    with pagestream.open_checkpoint([path]) as weights:
        wanted = dict.fromkeys(weights, (slice(None), slice(3, 900)))
        for _ in weights.stream(wanted, strategy="pread"):
            pass


def warm(path, **options):
    with pagestream.open_checkpoint([path], **options) as weights:
        weights.warm().wait(600)


def checksums(path):
    with pagestream.open_checkpoint([path]) as weights:
        weights.write_checksums()


def opened(path, **options):
    pagestream.open_checkpoint(path, **options).close()


def file(path, call):
    with pagestream.MappedFile(path) as mapped:
        call(mapped)


SCENARIOS = {
    "headers": lambda: opened(fresh(folder / "shards")),
    "index": lambda: opened(fresh(folder / "indexed")),
    "lead": lambda: lead(slow / "plain.safetensors"),
    "lead of many": lambda: lead(slow / "lead.safetensors", 3),
    "column slices": lambda: column_slices(slow / "plain.safetensors"),
    "row slices": lambda: row_slices(slow / "plain.safetensors"),
    "stream": lambda: stream(slow / "plain.safetensors", strategy="pread"),
    "stream of many": lambda: stream(many, strategy="pread"),
    "stream of columns": lambda: stream_of_columns(plain),
    "warm": lambda: warm(slow / "plain.safetensors"),
    "checksums": lambda: checksums(plain),
    "read": lambda: file(plain, lambda mapped: mapped.read(0, 1 << 20)),
    "warm a file": lambda: file(plain, lambda mapped: mapped.warm()),
    "residency": lambda: file(folder / "sparse", lambda mapped: mapped.residency()),
}

run = SCENARIOS[scenario]
run()  # fills pools and caches
number = 0
while True:
    number += 1
    print(number, flush=True)
    library.fail_large(number)
    try:
        run()
    except MemoryError:
        pass
    except OSError as error:
        assert error.errno == errno.ENOMEM, error
    finally:
        has_failed = library.large_failed()
        library.fail_large(0)
    if not has_failed:
        break
print("passed", number - 1)
