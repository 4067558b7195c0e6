"""A sent signal has the same effect as without pagestream."""

import os
import signal
import sys

from cut import opened
from handlers import install

ARRIVALS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGBUS),
    "raise_signal": lambda: signal.raise_signal(signal.SIGBUS),
}

install(sys.argv[2])
f = opened()
ARRIVALS[sys.argv[3]]()
print("alive")
