"""Installs other SIGBUS handlers by name."""

import faulthandler
import signal


def install_torchs_worker_handler():
    import torch

    torch._C._set_worker_signal_handlers()


HANDLERS = {
    "faulthandler": faulthandler.enable,
    "a Python handler": lambda: signal.signal(signal.SIGBUS, lambda *_: None),
    "the default": lambda: signal.signal(signal.SIGBUS, signal.SIG_DFL),
    "torch's worker handler": install_torchs_worker_handler,
}
