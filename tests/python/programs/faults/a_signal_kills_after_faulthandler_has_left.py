"""A sent signal kills the process after faulthandler was disabled."""

import os
import signal

from cut import opened
from handlers import enable_and_disable_faulthandler

f = opened()
enable_and_disable_faulthandler(f)
os.kill(os.getpid(), signal.SIGBUS)
print("alive")
