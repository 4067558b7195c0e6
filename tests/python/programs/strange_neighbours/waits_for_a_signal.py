"""Blocks a signal after pagestream has started threads, and waits for it with sigwait."""

import os

# OpenBLAS threads would receive the signal.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import contextlib
import signal
import sys
from pathlib import Path

import pagestream
from pagestream.safetensors import safe_open


def thread_names():
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield (task / "comm").read_text().strip()


path = sys.argv[1]
# The threads of this stream wait for memory, so they do not end.
stream = iter(pagestream.open_checkpoint([path]).stream(strategy="pread", memory_bytes=4 << 20))
next(stream)
# A new thread has no name yet, and the idle thread ends after a few seconds.
seen = set()
while not {"pagestream-idle", "pagestream-read"} <= seen:
    with safe_open(path, "np") as file:
        for name in file.keys()[:4]:
            file.get_tensor(name).sum()
    seen.update(name for name in thread_names() if name.startswith("pagestream"))
print(*sorted(seen))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait({signal.SIGUSR1}).name)
