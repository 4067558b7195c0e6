"""A report of broken memory is ignored if SIGBUS was ignored."""

import signal

signal.signal(signal.SIGBUS, signal.SIG_IGN)
from send import BUS_MCEERR_AO, send

send(BUS_MCEERR_AO)
send(BUS_MCEERR_AO)
print("alive")
