"""Takes a batch that exceeds the address space, and prints the error."""

import resource
import sys

from pagestream import TokenLoader, open_tokens

tokens = open_tokens(sys.argv[1], mmap_mode=sys.argv[2])
held = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) << 10
resource.setrlimit(resource.RLIMIT_AS, (held + (int(sys.argv[3]) << 20), -1))
options = {"dtype": "raw", "threads": 1, "memory_bytes": 1 << 20, "epochs": None}
loader = TokenLoader(tokens, sequence_length=1, batch_size=1 << 24, **options)
try:
    print(next(loader).x.shape)
except (MemoryError, OSError, ValueError) as error:
    print(type(error).__name__, "16777216 " in str(error))
loader.close()
