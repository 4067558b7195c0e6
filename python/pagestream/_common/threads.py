"""Threads that do not receive the program's signals."""

from __future__ import annotations

import signal
import threading

# The thread's own instructions raise these signals. If they are blocked, the kernel kills the process.
_SYNCHRONOUS = {
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}


class BackgroundThread(threading.Thread):
    """A daemon thread that starts with signals blocked.

    A program may block a signal, for example SIGUSR1, and wait for it with `signal.sigwait`. The kernel
    delivers a signal to any thread that does not block it. In our threads the default action would end the
    process.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread. It inherits the signal mask that the calling thread has briefly set."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _SYNCHRONOUS)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
