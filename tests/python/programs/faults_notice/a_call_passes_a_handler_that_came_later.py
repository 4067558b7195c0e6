"""A call on a file moves our handler in front of a later one."""

import faulthandler
import os
import signal
import sys

from notice import array, f, path, raised

import pagestream
from pagestream.safetensors import safe_open

weights = safe_open(sys.argv[2], "np")
checkpoint = pagestream.open_checkpoint(sys.argv[2])
tokens = pagestream.open_tokens(path, format="raw")
loader = pagestream.TokenLoader(tokens, sequence_length=8, batch_size=2)

HANDLERS = {
    "faulthandler": faulthandler.enable,
    "python": lambda: signal.signal(signal.SIGBUS, lambda *_: None),
    "default": lambda: signal.signal(signal.SIGBUS, signal.SIG_DFL),
}
CALLS = {
    "check": f.check,
    "read": lambda: f.read(0, 1),
    "read_into": lambda: f.read_into(bytearray(1)),
    "view": lambda: f.view(0, 1),
    "advise": lambda: f.advise("random", 0, 4096),
    "residency": lambda: f.residency(0, 4096),
    "warm": lambda: f.warm(0, 4096),
    "evict": f.evict,
    "unlock": f.unlock,
    "refresh": f.refresh,
    "corpus": tokens.check,
    "tokens": lambda: tokens[3],
    "slice": lambda: tokens[3:9],
    "loader": lambda: next(loader),
    "checkpoint": checkpoint.check,
    "tensor": lambda: weights.get_tensor("x"),
    "safe_open": weights.check,
    "guard": pagestream.guard,
}

next(loader)
call = sys.argv[3]
if call != "loader":
    loader.close()
HANDLERS[sys.argv[4]]()
CALLS[call]()
loader.close()
os.truncate(path, 4096)
print(raised(array.sum))
