"""Exit codes of the commands; `docs/command.md` lists them."""

from __future__ import annotations

BAD, WRONG_USE, NOT_VERIFIED = 1, 2, 3
# 128 + the number of a signal, as a shell reports a killed program: SIGINT, SIGPIPE.
# https://man7.org/linux/man-pages/man7/signal.7.html
INTERRUPTED, NO_READER = 130, 141
