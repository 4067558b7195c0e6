"""Installs other SIGBUS handlers by name."""

import faulthandler
import signal


def enable_faulthandler_anew():
    faulthandler.disable()
    faulthandler.enable()


def import_torch():
    import torch  # noqa: F401


def install_torchs_worker_handler():
    import torch

    torch._C._set_worker_signal_handlers()


HANDLERS = {
    "faulthandler": faulthandler.enable,
    "faulthandler anew": enable_faulthandler_anew,
    "python": lambda: signal.signal(signal.SIGBUS, lambda *_: None),
    "printing": lambda: signal.signal(signal.SIGBUS, lambda *_: print("handled")),
    "ignored": lambda: signal.signal(signal.SIGBUS, signal.SIG_IGN),
    "default": lambda: signal.signal(signal.SIGBUS, signal.SIG_DFL),
    "blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGBUS]),
    "torch imported": import_torch,
    "torch": install_torchs_worker_handler,
}


def install(names):
    """Installs the handlers that `names` lists, separated by commas."""
    for name in filter(None, names.split(",")):
        HANDLERS[name]()


def enable_and_disable_faulthandler(f):
    faulthandler.enable()
    f.read(0, 1)
    faulthandler.disable()
    f.read(0, 1)
