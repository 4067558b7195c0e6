"""Opens a checkpoint with a million names, and prints the peak of memory."""

import sys

from pagestream import open_checkpoint


def peak_bytes():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10


before = peak_bytes()
weights = open_checkpoint(sys.argv[1])
print(peak_bytes() - before, len(weights), weights.info("model.layers.999999.weight").offset)
